"""Options that a live run takes over without a restart (`agentrl runs set`): their table, and how they are applied."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs

from agentrl_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agentrl_core.config.nodes import Problem
    from agentrl_core.config.sampling_sections import RolloutConfig
    from agentrl_core.config.training_sections import EvalConfig, TrainerConfig

C = TypeVar("C", bound="RolloutConfig | TrainerConfig | EvalConfig")

LIVE_OPTIONS: Mapping[str, str] = {
    "rollout.max_concurrent_rollouts": "for episodes that begin from now on, in each sampling process",
    "rollout.timeout_s": "for episodes that begin from now on",
    "trainer.save_steps": "from the next step on",
    "trainer.save_minutes": "from the next step on",
    "eval.every": "from the next step on",
    "eval.tasks_during": "from the next evaluation on",
}
"""Dotted path -> when a live run follows it.

The others decide what is sampled or trained (`rollout.group_size`, `trainer.lr`, the staleness bound), so that a change
in the middle of a step would leave groups of two kinds in one batch, or they are read once, when a process starts.
"""


def read_limits(kept: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, int | float | None]:
    """Return the values of `a.b=c` overrides for a live run whose config is `kept`, checked like a config file.

    `null` stands for the config's own value again, and becomes None. Raises `UsageError` for an option that a live run
    does not take over, and `ConfigError` for a value that it cannot have.
    """
    from agentrl_core import config as configs

    values = dict(_given(overrides))
    if fixed := sorted(values.keys() - LIVE_OPTIONS.keys()):
        raise UsageError(
            f"{', '.join(fixed)}: a live run cannot change this; it takes over {', '.join(LIVE_OPTIONS)}. For other "
            "options, stop the run and resume it with them"
        )
    config = configs.parse(kept, [f"{path}={value}" for path, value in values.items() if value is not None])
    return {
        path: None if value is None else cast("int | float", attrgetter(path)(config)) for path, value in values.items()
    }


def live_paths(overrides: Sequence[str]) -> list[str]:
    """Return the dotted paths of the live options among `a.b=c` overrides."""
    return [path for path, _ in _given(overrides) if path in LIVE_OPTIONS]


def with_limits(section: str, config: C, limits: Mapping[str, int | float]) -> C:
    """Return a section of the config with the limits of `RunControl` in place of its own values.

    Limits that are no live options, as a newer version may have stored them, are ignored.
    """
    changed: dict[str, Any] = {
        path.removeprefix(f"{section}."): value
        for path, value in limits.items()
        if path in LIVE_OPTIONS and path.startswith(f"{section}.")
    }
    limited: C = attrs.evolve(cast("Any", config), **changed)
    return limited


def _given(overrides: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield dotted path and plain value of each option that the overrides name."""
    from agentrl_core.config.nodes import assignments, refusal
    from agentrl_core.config.yaml_text import read_override

    problems: list[Problem] = []
    late = [read_override(text, index, problems) for index, text in enumerate(overrides)]
    if problems:
        raise refusal(problems)
    for item in late:
        for part in assignments(item.node, item.path):
            yield ".".join(part.path), part.node.plain()
