"""Run the slots of one group, with retries or fail-fast, until it is known whether the group is usable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, TypeAlias

from agentrl_core.rollout.run_agent import SIBLING_FAILED
from agentrl_core.types import Outcome, Record

if TYPE_CHECKING:
    from agentrl_core.config.sampling_sections import RolloutConfig

StartSlot: TypeAlias = "Callable[[asyncio.TaskGroup, int, int], asyncio.Task[Record | None]]"
"""Function that starts one episode in a task group, given slot and attempt number. Its record is None if no online
agent took the slot."""


async def run_slots(
    start: StartSlot, config: RolloutConfig, *, size: int, scored: Collection[int] = (), tries: int = 0
) -> bool:
    """Run every slot of a group that is not in `scored`, and return whether the group is usable.

    `tries` counts the earlier groups of this task that ended unusable. Attempt numbers continue after theirs, so that
    no episode is sampled with the random numbers of an earlier one. A group that is taken over repeats the numbers of
    its own unfinished episodes, so its samples do not depend on who runs it.
    """
    missing = [slot for slot in range(size) if slot not in scored]
    first = tries * (config.retries + 1)
    if config.siblings == "cancel":
        return await _all_or_nothing(start, missing, first)
    for attempt in range(first, first + config.retries + 1):
        async with asyncio.TaskGroup() as group:
            # A TaskGroup, so that a fault that is not an episode's own cancels the other episodes and is raised.
            running = {slot: start(group, slot, attempt) for slot in missing}
        missing = [slot for slot, item in running.items() if not _scored(item)]
        # A slot that no online agent took in time is not retried: the group would wait again for agents that do not
        # come.
        if not missing or any(item.result() is None for item in running.values()):
            break
    return size - len(missing) >= config.min_group_size


async def _all_or_nothing(start: StartSlot, slots: Iterable[int], attempt: int) -> bool:
    """Run all slots; when one ends without a score, cancel the others with their generations."""
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
    """Return whether a finished slot has a reward; raise faults that are not an episode's own."""
    if item.cancelled():
        return False
    record = item.result()
    return record is not None and record.outcome is Outcome.SCORED
