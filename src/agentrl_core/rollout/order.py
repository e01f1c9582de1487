"""Order in which tasks are sampled, fixed by the seed: a position always has the same task, also after a resume."""

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
    """Sequence of tasks over epochs; each epoch has every task once, shuffled anew. Position 0 is the first group's."""

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
class QueuedTask:
    """A position in the order and its task."""

    index: int
    task: Task
    tries: int = 0
    """Groups of this position that ended unusable."""


class TaskQueue:
    """Queue of the turns to sample: positions that were put back, then the next ones of the order.

    A position that is put back waits for `release`, and then precedes all new ones, sorted by position. So the order
    does not depend on when its group ended. `left` holds the positions before `start_index` that an earlier process did
    not finish, with their tries. Without an order, `turn_for` gives positions to tasks that online agents bring.
    """

    def __init__(
        self, order: TaskOrder | None, *, start_index: int = 0, left: Mapping[int, int] | None = None, requeue: int = 0
    ) -> None:
        self._order, self._next, self._requeue = order, start_index, requeue
        self._waiting: list[QueuedTask] = []
        self._released: list[tuple[int, QueuedTask]] = []
        if order is not None:
            self._waiting = [
                QueuedTask(index=index, task=order[index], tries=tries)
                for index, tries in sorted((left or {}).items())
                if tries <= requeue
            ]
        self.release()

    def next(self) -> QueuedTask:
        """Return the next turn; only with an order."""
        if self._released:
            return heapq.heappop(self._released)[1]
        if self._order is None:
            raise TypeError("there is no order to take a task from")
        return self.turn_for(self._order[self._next])

    def turn_for(self, task: Task) -> QueuedTask:
        """Return the next position, with `task` as its task."""
        self._next += 1
        return QueuedTask(index=self._next - 1, task=task)

    def put_back(self, turn: QueuedTask) -> bool:
        """Schedule the turn of an unusable group again; return False if it has no tries left."""
        if self._order is None or turn.tries >= self._requeue:
            return False
        self._waiting.append(attrs.evolve(turn, tries=turn.tries + 1))
        return True

    def release(self) -> None:
        """Make the positions that were put back so far the next ones."""
        for turn in self._waiting:
            # A position waits at most once, so the heap never compares two turns.
            heapq.heappush(self._released, (turn.index, turn))
        self._waiting.clear()


def stable_hash(text: str) -> int:
    """Return a 63-bit hash of `text` that is equal in every process, unlike `hash`."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
