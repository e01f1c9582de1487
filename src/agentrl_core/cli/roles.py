"""`agentrl serve`, `agentrl sample` and `agentrl train`: the parts of one run, each as a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl_core.cli.output import check_learned
from agentrl_core.cli.printing import echo

_Config = Annotated[Path, typer.Argument(help="YAML file; the same for all members of the run.")]
_Overrides = Annotated[list[str] | None, typer.Argument(help="Options to change, such as trainer.steps=20.")]
_Name = Annotated[str, typer.Option("--name", help="Name of the run, by which its members find each other.")]


def serve(config: _Config, overrides: _Overrides = None, *, name: _Name = "") -> None:
    """Serve the policy of a run to its samplers, always with the newest weights."""
    from agentrl_core.run.roles.serve import serve as serve_run

    serve_run(config, overrides or (), name=name, notice=echo)


def sample(config: _Config, overrides: _Overrides = None, *, name: _Name = "") -> None:
    """Run the agent of a run on its servers; start as many of these as you like."""
    from agentrl_core.run.roles.sample import sample as sample_run

    sample_run(config, overrides or (), name=name, notice=echo)


def train(config: _Config, overrides: _Overrides = None, *, name: _Name = "") -> None:
    """Train on what a run's samplers produce: create the run, or resume it."""
    from agentrl_core.run.roles.train import train as train_run

    check_learned(train_run(config, overrides or (), name=name, notice=typer.echo))
