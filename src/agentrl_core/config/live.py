"""Options that a live run takes over without a restart (`agentrl runs set`): their table, and how they are applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import attrs

from agentrl_core import config as configs
from agentrl_core.config.nodes import assignments, refusal
from agentrl_core.config.yaml_text import read_override
from agentrl_core.errors import UsageError

if TYPE_CHECKING:
    from agentrl_core.config.schema import RunConfig

LIVE_OPTIONS: Mapping[str, str] = {
    "rollout.max_concurrent_rollouts": "from the next episode on; per sampling process",
    "rollout.timeout_s": "for episodes that begin from now on",
    "trainer.save_steps": "from the next step on",
    "trainer.save_minutes": "from the next step on",
    "trainer.keep_last": "at the next checkpoint",
    "eval.every": "from the next step on",
    "eval.tasks_during": "at the next evaluation",
}
"""Dotted path -> when a live run follows it.

Other options decide what is sampled or trained (`rollout.group_size`, `trainer.lr`, the staleness bound), so a change
in the middle of a step would leave groups of two kinds in one batch, or are read once, at the start of a process.
"""


def read_limits(kept: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, int | float | None]:
    """Return the values of `a.b=c` overrides for a live run whose config is `kept`, checked like a config file.

    `null` stands for the config's own value again, and becomes None. Raises `UsageError` for an option that a live run
    does not take over, and `ConfigError` for a value that it cannot have.
    """
    problems: list[Any] = []
    late = [read_override(text, index, problems) for index, text in enumerate(overrides)]
    if problems:
        raise refusal(problems)
    values = {".".join(part.path): part.node.plain() for item in late for part in assignments(item.node, item.path)}
    if fixed := sorted(values.keys() - LIVE_OPTIONS.keys()):
        raise UsageError(
            f"{', '.join(fixed)}: a live run cannot change this; it takes over {', '.join(LIVE_OPTIONS)}. For other "
            "options, stop the run and resume it with them"
        )
    given = [f"{path}={value}" for path, value in values.items() if value is not None]
    config = configs.parse(kept, given)
    return {
        path: None if value is None else cast("int | float", attrgetter(path)(config)) for path, value in values.items()
    }


def with_limits(config: RunConfig, limits: Mapping[str, int | float]) -> RunConfig:
    """Return the config with the limits of `RunControl` in place of its own values; others than live ones are ignored.

    A store may keep limits that a newer version wrote.
    """
    for path, value in limits.items():
        if path in LIVE_OPTIONS:
            section, option = path.split(".")
            config = attrs.evolve(config, **{section: attrs.evolve(getattr(config, section), **{option: value})})
    return config
