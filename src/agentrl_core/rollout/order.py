"""The order in which tasks are submitted, fixed by the seed: the same position is always the same task."""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from agentrl_core.errors import DataError

if TYPE_CHECKING:
    from agentrl_core.types import Task


class TaskOrder:
    """Every task once per epoch, each epoch shuffled anew. Position 0 is the run's first group."""

    def __init__(self, tasks: Sequence[Task], *, seed: int, shuffle: bool = True) -> None:
        if not tasks:
            raise DataError("there are no training tasks; data.train must hold at least one")
        self._tasks = tasks
        self._seed = seed
        self._shuffle = shuffle
        self._epoch = -1
        self._indices: list[int] = list(range(len(tasks)))

    def __getitem__(self, position: int) -> Task:
        epoch, offset = divmod(position, len(self._tasks))
        if self._shuffle and epoch != self._epoch:
            self._indices = list(range(len(self._tasks)))
            random.Random(f"{self._seed}:{epoch}").shuffle(self._indices)  # noqa: S311 - an order, not a secret
            self._epoch = epoch
        return self._tasks[self._indices[offset]]


@attrs.frozen(kw_only=True)
class Turn:
    """A position in the order, and the task that stands there."""

    index: int
    task: Task
    tries: int = 0
    """Groups at this position that ended unusable."""


class TaskQueue:
    """What is submitted next: the positions of an order, and those that were put back.

    A position that is put back waits for `release` and then comes before all new ones, by position: when its group
    ended makes no difference. `left` are the positions before `start_index` that an earlier process did not finish,
    with their tries. Without an order, positions go to tasks that others bring.
    """

    def __init__(
        self, order: TaskOrder | None, *, start_index: int = 0, left: Mapping[int, int] | None = None, requeue: int = 0
    ) -> None:
        self._order, self._next, self._requeue = order, start_index, requeue
        self._waiting: list[Turn] = []
        self._released: list[tuple[int, Turn]] = []
        if order is not None:
            self._waiting = [
                Turn(index=index, task=order[index], tries=tries)
                for index, tries in sorted((left or {}).items())
                if tries <= requeue
            ]
        self.release()

    def next(self) -> Turn:
        """Return the next turn of the order."""
        if self._released:
            return heapq.heappop(self._released)[1]
        if self._order is None:
            raise TypeError("there is no order to take a task from")
        return self.turn_for(self._order[self._next])

    def turn_for(self, task: Task) -> Turn:
        """Return the next position as that of `task`."""
        self._next += 1
        return Turn(index=self._next - 1, task=task)

    def put_back(self, turn: Turn) -> bool:
        """Let a turn whose group ended unusable come again; False where it may not."""
        if self._order is None or turn.tries >= self._requeue:
            return False
        self._waiting.append(attrs.evolve(turn, tries=turn.tries + 1))
        return True

    def release(self) -> None:
        """Let what was put back so far come next."""
        for turn in self._waiting:
            heapq.heappush(self._released, (turn.index, turn))  # a position waits at most once
        self._waiting.clear()


def stable_hash(text: str) -> int:
    """Return 63 bits of `text`, equal in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
