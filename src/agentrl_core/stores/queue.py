"""Which of the waiting groups a step takes: the oldest that are ready, as long as none left behind gets too old."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import attrs


@attrs.frozen(kw_only=True)
class Ahead:
    """How far groups that are ready may be taken before older ones that are not."""

    version: int
    """Policy version that is trained on what is taken now."""
    max_lag: int
    """Versions that a group may lag behind when it is taken."""
    per_step: int
    """Groups that each later version takes."""
    more: int = 0
    """Groups that this version takes after these."""


class Waiting(Protocol):
    """A group that was submitted and not taken."""

    @property
    def version(self) -> int:
        """Policy version when it was submitted."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it may be taken."""
        ...


Item = TypeVar("Item", bound=Waiting)


def next_groups(queue: Sequence[Item], count: int, ahead: Ahead | None) -> list[Item] | None:
    """Return the `count` groups to take from a queue in order; None while they, or those that may not wait, are open.

    Without `ahead` the first ones, whatever is ready behind them. With it the first that are ready, unless more would
    stay behind of some version, and of those before it, than the steps can take in which they are not yet too old:
    then it is they who are waited for. `queue` is ordered by version.
    """
    if ahead is None:
        first = list(queue[:count])
        return first if len(first) == count and all(item.ready for item in first) else None
    taken = [item for item in queue if item.ready][:count]
    if len(taken) < count:
        return None
    for version in {item.version for item in queue if not item.ready}:
        taken_so_far = sum(item.version <= version for item in taken)
        behind = sum(item.version <= version for item in queue) - taken_so_far
        steps = max(0, version + ahead.max_lag - ahead.version)
        if taken_so_far < count and behind > ahead.per_step * steps + ahead.more:
            return None
    return taken
