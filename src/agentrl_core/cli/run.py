"""`agentrl run`: train an agent from a config file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    config: Annotated[Path, typer.Argument(help="YAML file; `agentrl config show` prints its options.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Options to change, such as trainer.steps=20.")] = None,
    *,
    name: Annotated[str, typer.Option("--name", help="Name of the run; default: a generated one.")] = "",
) -> None:
    """Train an agent from a config file."""
    from agentrl_core.run import Trainer

    Trainer(config, overrides=overrides or (), name=name).train()
