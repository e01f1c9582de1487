"""`agentrl run`: train an agent from a config file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    config: Annotated[Path, typer.Argument(help="YAML file, see `agentrl config show`.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Options of the config, as a.b=c.")] = None,
    *,
    name: Annotated[str, typer.Option("--name", help="Name of the run; generated where empty.")] = "",
) -> None:
    """Train an agent from a config file."""
    from agentrl_core.run import Trainer

    Trainer(config, overrides=overrides or (), name=name).train()
