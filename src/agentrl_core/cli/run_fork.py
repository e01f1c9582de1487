"""`agentrl runs fork`: a new run that begins from a checkpoint of another one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl_core.cli.find_run import RunArgument, RunsOption, find_directory
from agentrl_core.cli.output import JsonSwitch, only_json, print_json
from agentrl_core.cli.printing import echo
from agentrl_core.config.invocation import command_line


def register(app: typer.Typer) -> None:
    """Add the command to `agentrl runs`."""
    app.command()(fork)


def fork(
    run: RunArgument,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Options of the new run that differ, such as trainer.lr=1e-6.")
    ] = None,
    *,
    step: Annotated[
        int | None, typer.Option("--step", metavar="N", help="Step of the checkpoint; default: the newest one.")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the new run; default: a generated one.")] = "",
    start: Annotated[bool, typer.Option(help="Train the new run; --no-start only creates its folder.")] = True,
    runs: RunsOption = Path("runs"),
    as_json: JsonSwitch = False,
) -> None:
    """Start a new run from a checkpoint of another, with that run's config."""
    from agentrl_core.run import resume
    from agentrl_core.run.fork import fork as fork_run

    directory = fork_run(find_directory(run, runs), step=step, name=name, overrides=overrides or ())
    if not start:
        if as_json:
            print_json({"name": directory.name, "directory": str(directory.path), "origin": directory.origin})
        else:
            echo(
                f"run {directory.name} begins from {directory.origin}. To train it: "
                f"{command_line('runs', 'resume', directory.reference)}"
            )
        return
    with only_json(as_json) as show:
        summary = resume(directory.path)
        show(summary)
    if summary.status != "finished":
        raise typer.Exit(1)
