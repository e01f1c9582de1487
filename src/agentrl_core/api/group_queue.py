"""Selection of the groups that an optimizer step takes: the oldest ready ones, unless an order ranks them otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import attrs

if TYPE_CHECKING:
    from agentrl_core.types import Task


class Waiting(Protocol):
    """A group that was submitted and not yet taken."""

    @property
    def step(self) -> int:
        """Number of optimizer steps done when it was submitted.

        Not its policy version: the versions of a resumed run jump.
        """
        ...

    @property
    def ready(self) -> bool:
        """Whether all records of the group have ended, so that it may be taken."""
        ...

    @property
    def index(self) -> int:
        """Position of the group in the run."""
        ...

    @property
    def task_id(self) -> str:
        """Id of the group's task."""
        ...

    @property
    def tries(self) -> int:
        """Number of earlier groups of its position that ended unusable."""
        ...


@attrs.frozen(kw_only=True)
class OvertakeLimits:
    """Limits within which ready groups may overtake older groups that are still open."""

    step: int
    """Number of optimizer steps done, before the one that takes groups now."""
    max_lag: int
    """Number of steps that a group may lag behind when it is taken."""
    per_step: int
    """Number of groups that each later step takes."""
    more: int = 0
    """Number of groups that this step takes in later calls."""
    urgency: Callable[[Waiting], float] | None = None
    """Rank of a ready group that is not too old: the highest number is taken first. None: the order of submission, in
    which open groups that would get too old are waited for."""


@attrs.frozen(kw_only=True)
class RankedGroup:
    """Facts about a ready group, by which an order ranks it."""

    index: int
    """Position of the group in the run: groups of smaller positions were asked for earlier."""
    step: int
    """Number of optimizer steps done when its sampling began: groups of a higher step are fresher."""
    lag: int
    """Number of optimizer steps done since then."""
    steps_left: int
    """Number of steps after this one that may still take it; 0 if it will be too old for the next one."""
    task_id: str
    task: Task | None
    """Its task; None if the trainer has no data set, because agents bring the tasks."""
    tries: int
    """Number of earlier groups of its position that ended unusable."""


class GroupOrder(Protocol):
    """Order in which a step takes the groups that are ready; registered under the kind `group_orders`."""

    def urgency(self, group: RankedGroup) -> float:
        """Return a number that depends on `group` alone: the highest is taken first, and of equal ones the oldest.

        It is not asked about groups that are too old: a step takes them before all others, drops them, and samples
        others in their place. It is called while the store is locked, so it must be fast. Each training task is
        ranked once before the run; for a task that cannot be ranked, raise `DataError`.
        """
        ...


Item = TypeVar("Item", bound=Waiting)


def next_groups(queue: Sequence[Item], count: int, ahead: OvertakeLimits | None) -> list[Item] | None:
    """Return the next `count` groups of a queue, which is ordered by step; None if the caller must wait.

    Without `ahead` these are the first groups, and all of them must be ready. With `ahead` these are the first ready
    groups. But the open groups that they overtake must still be taken before they are too old. If the groups left
    behind are more than the remaining steps can take in time, the caller must wait until the open ones are ready.

    With `ahead.urgency` these are the most urgent ready groups, whatever is left behind. Groups that are too old come
    first: nothing can train them, and as long as they wait no others are admitted in their place.
    """
    if ahead is None:
        first = list(queue[:count])
        return first if len(first) == count and all(item.ready for item in first) else None
    places = [place for place, item in enumerate(queue) if item.ready]
    if len(places) < count:
        return None
    if ahead.urgency is not None:
        return _by_urgency([queue[place] for place in places], ahead, ahead.urgency)[:count]
    taken = [queue[place] for place in places[:count]]
    overtaken = [item for item in queue[: max(places[:count], default=0)] if not item.ready]
    # All groups of one step share a deadline, so count those of each step together with all older ones. They may be
    # more than were admitted then: a sampler that has yet to hear of the newest version submits groups under the last.
    for step in {item.step for item in overtaken}:
        behind = sum(item.step <= step for item in queue) - sum(item.step <= step for item in taken)
        steps = max(0, step + ahead.max_lag - ahead.step)
        if behind > ahead.per_step * steps + ahead.more:
            return None
    return taken


def _by_urgency(ready: Sequence[Item], ahead: OvertakeLimits, urgency: Callable[[Waiting], float]) -> list[Item]:
    """Return groups that are too old, then the others by falling urgency; the sort keeps the order of equal ones."""
    oldest = ahead.step - ahead.max_lag
    too_old = [item for item in ready if item.step < oldest]
    return too_old + sorted((item for item in ready if item.step >= oldest), key=urgency, reverse=True)
