"""The config that a run's folder keeps, changed by overrides: for a run that is resumed, and for a fork of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentrl_core import config as configs
from agentrl_core.config.component import AUTO
from agentrl_core.errors import UsageError
from agentrl_core.plugins.manager import load_registry
from agentrl_core.run.loss import settled

if TYPE_CHECKING:
    from pathlib import Path

    from agentrl_core.config.schema import RunConfig

_DECIDED = ("aggregation", "unit", "horizon")
"""Options of the section `loss` that the loss sets if the config does not; it also chooses the advantage."""


def with_overrides(kept: Mapping[str, Any], base_dir: Path, overrides: Sequence[str]) -> RunConfig:
    """Return the kept config with `a.b=c` overrides; raise `ConfigError` like `config.parse`."""
    config = configs.parse(kept, overrides)
    # The snapshot has the advantage that the old loss asks for written out, and that must not bind another loss.
    if config.loss.use != kept["loss"]["use"]:
        return configs.parse(_unsettled(kept, base_dir), overrides)
    return config


def _unsettled(kept: Mapping[str, Any], base_dir: Path) -> dict[str, Any]:
    """Return the kept config without the advantage that the old loss had set, so that the new loss sets its own.

    An advantage that differs from the old loss's default was the user's choice, and stays.
    """
    silent = {name: value for name, value in kept["loss"].items() if name not in _DECIDED}
    loaded = configs.LoadedConfig(configs.parse({**kept, "loss": silent, "advantage": AUTO}), base_dir)
    plugins = loaded.run.plugins
    try:
        decided = configs.dump(settled(loaded, load_registry(plugins.block, on_error=plugins.on_error)))
    except UsageError:  # the old loss is not installed any more, so its defaults are unknown
        return dict(kept)
    return {**kept, "advantage": AUTO} if decided["advantage"] == kept["advantage"] else dict(kept)
