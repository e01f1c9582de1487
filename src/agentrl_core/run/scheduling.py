"""Build the scheduler of a sampling member from a run's config, for a gateway of this process or of others."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from agentrl_core.rollout.runner import Runner
from agentrl_core.rollout.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agentrl_core.api.stores import Store
    from agentrl_core.rollout.episode_gateway import EpisodeGateway
    from agentrl_core.rollout.episode_source import EpisodeSource
    from agentrl_core.run.components import RunComponents
    from agentrl_core.tools.toolbox import Toolbox
    from agentrl_core.types import Record

logger = logging.getLogger(__name__)

END_S = 15.0
"""Longest wait for cancelled episodes to be stored, with time for agents and scorers to clean up."""


async def until_ended(scheduling: asyncio.Task[None]) -> None:
    """Wait until a scheduler's `run` has ended, and log its error if it has one, which was raised elsewhere."""
    await asyncio.wait({scheduling})
    if not scheduling.cancelled() and (error := scheduling.exception()) is not None:
        logger.info("sampling ended with %s", error)


def build_scheduler(
    components: RunComponents,
    *,
    store: Store,
    run_id: str,
    member_id: str,
    source: EpisodeSource,
    gateway: EpisodeGateway[Any],
    tools: Toolbox | None,
    version: Callable[[], int],
    poll_s: float,
    refresh: Callable[[], Awaitable[None]] | None = None,
    on_scored: Callable[[Record], None],
    on_ended: Callable[[Record], None] | None = None,
) -> Scheduler:
    """Return the scheduler of one sampling member, with its runner; the arguments are those of both."""
    config = components.config
    runner = Runner(
        source=source,
        gateway=gateway,
        tools=tools,
        store=store,
        scorer_for=components.scorers.for_task,
        config=config.rollout,
        run_id=run_id,
    )
    return Scheduler(
        tasks=components.tasks,
        runner=runner,
        store=store,
        config=config.rollout,
        run_id=run_id,
        member_id=member_id,
        seed=config.seed,
        version=version,
        eval_sampling=config.eval_sampling,
        shuffle=config.data.shuffle,
        total_steps=config.trainer.steps,
        poll_s=poll_s,
        refresh=refresh,
        on_scored=on_scored,
        on_ended=on_ended,
    )
