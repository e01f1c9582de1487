"""Selection of the groups that an optimizer step takes: the oldest ready ones, unless an open group gets too old."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import attrs


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


Item = TypeVar("Item", bound=Waiting)


def next_groups(queue: Sequence[Item], count: int, ahead: OvertakeLimits | None) -> list[Item] | None:
    """Return the next `count` groups of a queue, which is ordered by step; None if the caller must wait.

    Without `ahead` these are the first groups, and all of them must be ready. With `ahead` these are the first ready
    groups. But the groups left behind must still be taken before they are too old. If they are more than the
    remaining steps can take in time, the caller must wait until the open ones are ready.
    """
    if ahead is None:
        first = list(queue[:count])
        return first if len(first) == count and all(item.ready for item in first) else None
    taken = [item for item in queue if item.ready][:count]
    if len(taken) < count:
        return None
    # All groups of one step share a deadline, so count those of each step together with all older ones.
    for step in {item.step for item in queue if not item.ready}:
        taken_so_far = sum(item.step <= step for item in taken)
        behind = sum(item.step <= step for item in queue) - taken_so_far
        steps = max(0, step + ahead.max_lag - ahead.step)
        # If all taken groups are of this step or older, waiting could not take more of them in this step.
        if taken_so_far < count and behind > ahead.per_step * steps + ahead.more:
            return None
    return taken
