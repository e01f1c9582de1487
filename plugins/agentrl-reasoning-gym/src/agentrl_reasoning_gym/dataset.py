"""The data set `reasoning_gym`: tasks that reasoning-gym generates, in two splits that share no question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Literal

import attrs
from attrs import field, validators

from agentrl_core import Task
from agentrl_core.errors import DataError
from agentrl_reasoning_gym.source import KEY, Origin, digest, installed

_SPREAD = 1_000_000
"""Distance of the seeds of reasoning-gym's data sets. Their entry `i` has the seed `seed + i`, so data sets with
neighbouring seeds have nearly the same entries."""
_TRIES = 64
"""Number of entries that are looked at for each task, before the data set counts as exhausted."""


@attrs.frozen(kw_only=True)
class ReasoningGym:
    """Generate tasks of one or several data sets of reasoning-gym, all different, with equal shares.

    A question belongs to one split for good, by its digest. So tasks to train on and tasks to evaluate on never share
    a question, whatever their seeds, sizes and levels are.
    """

    datasets: str | Sequence[str] | Mapping[str, Mapping[str, Any]] = field(validator=validators.min_len(1))
    """Name of a data set, or a list of names, or a section `{NAME: {OPTION: …}}`."""
    size: int = field(default=500, validator=validators.gt(0))
    """Number of tasks."""
    seed: int = field(default=0, validator=[validators.ge(0), validators.lt(2**32 // _SPREAD)])
    """Seed of the tasks."""
    split: Literal["train", "eval", "all"] = "train"
    """Half of all questions that the tasks are taken from; `all` takes both halves."""
    difficulty: int | None = field(default=None, validator=validators.optional(validators.ge(0)))
    """Level of the data sets' curricula, from 0; None for the data sets' own defaults. Options win over it."""
    system_prompt: str = ""
    """Text of a system message before the question; empty for none."""

    def __attrs_post_init__(self) -> None:
        for origin in self._origins():
            origin.generator()

    def _origins(self) -> list[Origin]:
        """Return the first place of each data set."""
        if isinstance(self.datasets, Mapping):
            parts = self.datasets
        else:
            parts = {name: {} for name in ([self.datasets] if isinstance(self.datasets, str) else self.datasets)}
        seed, level = self.seed * _SPREAD, self.difficulty
        return [
            Origin(dataset=name, seed=seed, index=0, difficulty=level, options=options)
            for name, options in parts.items()
        ]

    def __call__(self) -> list[Task]:
        """Generate the tasks; raise `DataError` if there are fewer different questions."""
        origins = self._origins()
        shares = [self.size // len(origins) + (place < self.size % len(origins)) for place in range(len(origins))]
        columns = [list(self._tasks(origin, share)) for origin, share in zip(origins, shares, strict=True)]
        rows = range(max(shares))
        return [column[row] for row in rows for column in columns if row < len(column)]

    def _tasks(self, first: Origin, size: int) -> Iterator[Task]:
        seen: set[str] = set()
        for index in count():
            if len(seen) == size:
                return
            if index == min(size * _TRIES, _SPREAD):
                raise DataError(
                    f"reasoning-gym's data set '{first.dataset}': expected {size} different questions in the split "
                    f"'{self.split}', found {len(seen)}; lower `size`, or make the questions harder"
                )
            origin = attrs.evolve(first, index=index)
            try:
                entry = origin.entry()
            except Exception as error:
                failed = f"failed to generate entry {index}: {type(error).__name__}: {error}"
                raise DataError(f"reasoning-gym's data set '{first.dataset}' {failed}") from error
            key = digest(entry["question"])
            if key not in seen and self.split in ("all", "eval" if int(key, 16) % 2 else "train"):
                seen.add(key)
                yield self._task(origin, entry, key)

    def _task(self, origin: Origin, entry: Mapping[str, Any], key: str) -> Task:
        question, answer = entry["question"], entry["answer"]
        task_id = f"{origin.dataset}-{self.seed}-{origin.index}"
        messages = [{"role": "user", "content": question}]
        if self.system_prompt:
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        row = attrs.asdict(origin, recurse=False) | {"options": dict(origin.options)}
        data = {
            "id": task_id,
            "query": question,
            "messages": messages,
            KEY: {**row, "question": key, "version": installed()},
        }
        return Task(id=task_id, data=data, answer=answer if isinstance(answer, str) else None, scorer="reasoning_gym")
