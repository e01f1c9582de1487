"""Ranking of waiting groups by the run's order (`rollout.order`), as `take_groups` of a store applies it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs

from agentrl_core.api.group_queue import RankedGroup
from agentrl_core.batching.group_orders import Fifo
from agentrl_core.errors import DataError, PluginError, UsageError
from agentrl_core.plugins.references import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.api.group_queue import GroupOrder, OvertakeLimits, Waiting
    from agentrl_core.types import Task


@attrs.frozen
class GroupRanking:
    """An order with the tasks that it may look at."""

    order: GroupOrder
    tasks: Mapping[str, Task] = attrs.field(factory=dict, repr=False)

    @classmethod
    def of(cls, order: GroupOrder, tasks: Sequence[Task]) -> GroupRanking:
        """Return the ranking of groups of a run on `tasks`."""
        return cls(order, {task.id: task for task in tasks})

    def apply(self, limits: OvertakeLimits) -> OvertakeLimits:
        """Return the limits of a step with the order in them; `fifo` is the order that they have without one."""
        if isinstance(self.order, Fifo):
            return limits

        def urgency(group: Waiting) -> float:
            lag = limits.step - group.step
            ranked = RankedGroup(
                index=group.index,
                step=group.step,
                lag=lag,
                steps_left=limits.max_lag - lag,
                task_id=group.task_id,
                task=self.tasks.get(group.task_id),
                tries=group.tries,
            )
            return _urgency(self.order, ranked, f"task '{group.task_id}': ")

        return attrs.evolve(limits, urgency=urgency)


def unrankable(order: GroupOrder, tasks: Sequence[Task]) -> tuple[Task, str] | None:
    """Return the first task whose groups an order cannot rank, and why."""
    for index, task in enumerate(() if isinstance(order, Fifo) else tasks):
        group = RankedGroup(index=index, step=0, lag=0, steps_left=0, task_id=task.id, task=task, tries=0)
        try:
            _urgency(order, group, "")
        except UsageError as error:
            return task, str(error)
    return None


def _urgency(order: GroupOrder, group: RankedGroup, where: str) -> float:
    """Return a group's urgency; raise `UsageError` if the order raises, or returns what cannot be compared."""
    prefix = f"{where}rollout.order ({type(order).__name__}): "
    try:
        urgency = order.urgency(group)
    except UsageError as error:
        raise DataError(f"{prefix}{error}") from error
    except Exception as error:
        raise PluginError(f"{prefix}`urgency` raised {one_line(error)}") from error
    if not isinstance(urgency, int | float) or math.isnan(urgency):
        raise PluginError(f"{prefix}expected a number from `urgency`, found {urgency!r:.80}")
    return urgency
