"""The order in which tasks are submitted, fixed by the seed: the same position is always the same task."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

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


def stable_hash(text: str) -> int:
    """Return 63 bits of `text`, equal in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
