"""Entries of reasoning-gym's data sets, generated again from a few JSON values: for tasks, and for their scores."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import attrs

KEY = "reasoning_gym"
"""Key of a task's row that holds its `Origin`."""


@attrs.frozen(kw_only=True)
class Origin:
    """Place where a task comes from; enough to generate it again.

    A row keeps this instead of reasoning-gym's own entry, because entries hold tuples, sets and keys of other types,
    which JSON changes and some of reasoning-gym's scorers then refuse.
    """

    dataset: str
    """Name of reasoning-gym's data set."""
    seed: int
    """Seed of the data set."""
    index: int
    """Position of the entry in the data set."""
    difficulty: int | None = None
    """Level of the data set's curriculum; None for its defaults."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """Options of the data set's configuration."""

    def entry(self) -> dict[str, Any]:
        """Generate the entry: its `question`, `answer` and `metadata`."""
        return dict(self.generator()[self.index])

    def generator(self) -> Any:
        """Return reasoning-gym's data set; `ValueError` with one line if it does not exist or refuses its options."""
        return _generator(self.dataset, self.seed, self.difficulty, json.dumps(self.options, sort_keys=True))


def digest(question: str) -> str:
    """Return a short digest of a question."""
    return hashlib.blake2b(question.encode(), digest_size=8).hexdigest()


def installed() -> str:
    """Return reasoning-gym's version."""
    return version("reasoning-gym")


def check_name(dataset: str) -> None:
    """Raise `ValueError` if reasoning-gym has no such data set."""
    from reasoning_gym.factory import DATASETS

    if dataset not in DATASETS:
        from agentrl_core.api.options import did_you_mean

        raise ValueError(f"reasoning-gym has no data set '{dataset}'{did_you_mean(dataset, DATASETS)}")


@functools.lru_cache(maxsize=64)
def _generator(dataset: str, seed: int, difficulty: int | None, options: str) -> Any:
    from reasoning_gym.factory import DATASETS, create_curriculum, has_curriculum

    check_name(dataset)
    kind, config_class = DATASETS[dataset]
    values: dict[str, Any] = {}
    if difficulty is not None:
        if not has_curriculum(dataset):
            raise ValueError(f"reasoning-gym's data set '{dataset}' has no levels of difficulty; leave difficulty out")
        curriculum = create_curriculum(dataset)
        curriculum.set_global_level(difficulty)
        level = curriculum.generate_configuration()
        values = {field: getattr(level, field) for field in level.__dataclass_fields__}
    values |= {**json.loads(options), "seed": seed}
    unknown = sorted(values.keys() - config_class.__dataclass_fields__.keys())
    if unknown:
        fields = ", ".join(sorted(config_class.__dataclass_fields__.keys() - {"seed", "size"}))
        raise ValueError(f"reasoning-gym's data set '{dataset}' has no option '{unknown[0]}'; it has {fields}")
    try:
        config = config_class(**values)
        if hasattr(config, "validate"):
            config.validate()
        return kind(config=config)
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"reasoning-gym's data set '{dataset}' refuses its options: {error}") from error
