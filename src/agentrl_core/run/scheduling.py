"""Build the scheduler of a sampling member from a run's config, for a gateway of this process or of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.rollout.runner import Runner
from agentrl_core.rollout.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agentrl_core.api.stores import Store
    from agentrl_core.rollout.episode_gateway import EpisodeGateway
    from agentrl_core.rollout.episode_source import EpisodeSource
    from agentrl_core.run.components import RunComponents
    from agentrl_core.types import Record


def build_scheduler(
    components: RunComponents,
    *,
    store: Store,
    run_id: str,
    member_id: str,
    source: EpisodeSource,
    gateway: EpisodeGateway[Any],
    version: Callable[[], int],
    poll_s: float,
    on_scored: Callable[[Record], None],
    on_ended: Callable[[Record], None] | None = None,
    before_claims: Callable[[], Awaitable[None]] | None = None,
) -> Scheduler:
    """Return the scheduler of one sampling member, with its runner; the arguments are those of both."""
    config = components.config
    runner = Runner(
        source=source,
        gateway=gateway,
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
        eval_sampling=attrs.evolve(config.sampling, temperature=config.eval.temperature),
        shuffle=config.data.shuffle,
        total_steps=config.trainer.steps,
        poll_s=poll_s,
        on_scored=on_scored,
        on_ended=on_ended,
        before_claims=before_claims,
    )
