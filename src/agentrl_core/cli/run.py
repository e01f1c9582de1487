"""`agentrl run`: train an agent from a config file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from agentrl_core.cli.output import check_learned


def run(
    config: Annotated[Path, typer.Argument(help="YAML file; `agentrl config show` prints its options.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Options to change, such as trainer.steps=20.")] = None,
    *,
    name: Annotated[str, typer.Option("--name", help="Name of the run; default: a generated one.")] = "",
    verbose: Annotated[bool, typer.Option("--verbose", help="Show all columns for which there is room.")] = False,
) -> None:
    """Train an agent from a config file."""
    from agentrl_core.run import Trainer

    given = list(overrides or ())
    if verbose:
        given.append(_verbose_console(config, given))
    check_learned(Trainer(config, overrides=given, name=name).train())


def _verbose_console(config: Path, overrides: Sequence[str]) -> str:
    """Return the override that makes the tracker `console` of a config verbose."""
    from agentrl_core.config import load

    trackers = load(config, overrides).run.trackers
    told = [
        {"use": item.use, **item.options, **({"verbose": True} if item.use == "console" else {})} for item in trackers
    ]
    return f"trackers={json.dumps(told)}"
