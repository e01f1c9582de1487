"""Exchange of groups as the trainer sees it, through the store alone: open sampling, take groups, ask for evaluations.

It does not matter which members sample, and on which machines.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from agentrl_core.types import Evaluation, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.api.group_queue import OvertakeLimits
    from agentrl_core.api.stores import Store
    from agentrl_core.types import Group, Task

logger = logging.getLogger(__name__)

_TASKS_AT_ONCE = 500
"""Task rows that are stored between two turns of the event loop."""
_PAUSE_POLL_S = 1.0


def task_set(name: str) -> str:
    """Return the name in the store of the task set `name` of `data.eval`; a set without a name is `eval`."""
    return name if name == "eval" else f"eval.{name}"


class GroupSupply:
    """Groups and evaluations of one run for its trainer `member_id`; its coroutines may run on any event loop."""

    def __init__(self, store: Store, run_id: str, member_id: str = "") -> None:
        self._store, self._run_id, self._member_id = store, run_id, member_id

    async def open(self, tasks: Sequence[Task], steps_done: int) -> None:
        """Store the training tasks, and let sampling begin after `steps_done` optimizer steps."""
        await self._add_tasks(tasks)
        await self.admit(steps_done)

    async def admit(self, steps_done: int) -> None:
        """Let sampling go on after `steps_done` optimizer steps."""
        await self._store.admit(self._run_id, steps_done, member_id=self._member_id)

    async def replace(self, groups: int) -> None:
        """Admit `groups` more groups, in place of groups that were taken and then not used."""
        await self._store.replace_groups(self._run_id, groups, member_id=self._member_id)

    async def take(self, count: int, ahead: OvertakeLimits) -> Sequence[Group]:
        """Wait until the next `count` groups are ready; fewer once sampling is closed.

        While the run is paused, no group is taken.
        """
        seen = 0
        while (await self._store.control(self._run_id)).wanted == "pause":
            seen = await self._store.changed(self._run_id, seen, timeout_s=_PAUSE_POLL_S)
        return await self._store.take_groups(self._run_id, count, ahead=ahead, member_id=self._member_id)

    async def evaluate(self, name: str, tasks: Sequence[Task], *, version: int) -> Evaluation:
        """Let the samplers run every task once, and return the mean reward; `name` is that of the set in `data.eval`.

        The random keys depend on the run's seed and the task alone, so evaluations compare policies on equal terms.
        """
        await self._add_tasks(tasks, task_set(name))
        ids = [task.id for task in tasks]
        groups = await self._store.add_evaluation(
            self._run_id, task_set(name), ids, version=version, member_id=self._member_id
        )
        records = await self._store.await_groups(self._run_id, groups)
        scored = [record for record in records if record is not None and record.outcome is Outcome.SCORED]
        rewards = [record.reward for record in scored if record.reward is not None]
        found = Evaluation.of(rewards, failed=len(tasks) - len(rewards))
        logger.info("evaluation '%s': mean reward %.4f, %d of %d scored", name, found.mean, len(rewards), len(tasks))
        return found

    async def close(self) -> None:
        """Announce that no more groups will be trained; samplers end."""
        await self._store.close_sampling(self._run_id, member_id=self._member_id)

    async def _add_tasks(self, tasks: Sequence[Task], name: str = "train") -> None:
        """Store task rows in parts, so that a large data set does not hold up the event loop."""
        for start in range(0, len(tasks), _TASKS_AT_ONCE):
            await self._store.add_tasks(self._run_id, tasks[start : start + _TASKS_AT_ONCE], task_set=name)
            await asyncio.sleep(0)
