"""Order in which tasks are sampled, fixed by the seed: a position always has the same task, also after a resume."""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentrl_core.errors import DataError

if TYPE_CHECKING:
    from agentrl_core.types import Task

_EPOCHS = 3
"""Shuffled epochs kept: groups that come again may be of the epoch before, and the next one is prepared."""


class TaskOrder:
    """Sequence of tasks over epochs; each epoch has every task once, shuffled anew. Position 0 is the first group's.

    May be read from several threads, because a store asks for tasks where it claims groups.
    """

    def __init__(self, tasks: Sequence[Task], *, seed: int, shuffle: bool = True) -> None:
        if not tasks:
            raise DataError("there are no training tasks; data.train must hold at least one")
        self._tasks = tasks
        self._seed = seed
        self._shuffle = shuffle
        self._indices = functools.lru_cache(maxsize=_EPOCHS)(self._shuffled)

    def __getitem__(self, position: int) -> Task:
        epoch, offset = divmod(position, len(self._tasks))
        return self._tasks[self._indices(epoch)[offset] if self._shuffle else offset]

    def prepare(self, position: int) -> None:
        """Shuffle the epoch of a position and the next one, so that `id_at` finds them ready inside a transaction."""
        if self._shuffle:
            epoch = position // len(self._tasks)
            for number in (epoch, epoch + 1):
                self._indices(number)

    def id_at(self, position: int) -> str:
        """Return the id of the task at a position."""
        return self[position].id

    def _shuffled(self, epoch: int) -> list[int]:
        indices = list(range(len(self._tasks)))
        random.Random(f"{self._seed}:{epoch}").shuffle(indices)  # noqa: S311 - an order, not a secret
        return indices


def stable_hash(text: str) -> int:
    """Return a 63-bit hash of `text` that is equal in every process, unlike `hash`."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
