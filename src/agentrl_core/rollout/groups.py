"""The episodes of one group: which are tried again, and what the failure of one means for the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from agentrl_core.rollout.attempts import SIBLING_FAILED
from agentrl_core.types import Outcome

if TYPE_CHECKING:
    from agentrl_core.config.schema import RolloutConfig
    from agentrl_core.types import Record

StartSlot: TypeAlias = "Callable[[asyncio.TaskGroup, int, int], asyncio.Task[Record | None]]"
"""Start an episode in a task group, of a slot and an attempt; its record is None where no agent came to do it."""


async def run_group(start: StartSlot, config: RolloutConfig, *, tries: int = 0) -> bool:
    """Run every slot of a group, and tell whether it is usable.

    `tries` groups of this task ended unusable before: attempts are numbered on from theirs, so that none is sampled
    with the random numbers of an earlier one.
    """
    slots = range(config.group_size)
    first = tries * (config.retries + 1)
    if config.siblings == "cancel":
        return await _all_or_nothing(start, slots, first)
    missing: list[int] = list(slots)
    for attempt in range(first, first + config.retries + 1):
        async with asyncio.TaskGroup() as group:
            running = {slot: start(group, slot, attempt) for slot in missing}
        missing = [slot for slot, item in running.items() if not _scored(item)]
        if not missing or any(item.result() is None for item in running.values()):
            break
    return config.group_size - len(missing) >= config.min_group_size


async def _all_or_nothing(start: StartSlot, slots: Iterable[int], attempt: int) -> bool:
    """Run all slots; once one did not end scored, cancel the others with their generations."""
    async with asyncio.TaskGroup() as group:
        running = [start(group, slot, attempt) for slot in slots]
        pending = set(running)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if not all(map(_scored, done)):
                break
        for item in pending:
            item.cancel(SIBLING_FAILED)
    return all(map(_scored, running))


def _scored(item: asyncio.Task[Record | None]) -> bool:
    """Whether a finished slot has a reward; raises what no episode can be blamed for."""
    if item.cancelled():
        return False
    record = item.result()
    return record is not None and record.outcome is Outcome.SCORED
