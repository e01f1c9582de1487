"""`agentrl init`: writes a demo project, or a config for an existing agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl_core.cli.printing import echo


def init(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder to write into. Default: `demo`; with --agent, the working directory.")
    ] = None,
    *,
    agent: Annotated[str, typer.Option(help="Your agent: file.py:name or my_package.module.Name.")] = "",
) -> None:
    """Write a demo that learns in a minute, or with --agent a config for an agent that you already have."""
    from agentrl_core.cli.project import write_config, write_demo
    from agentrl_core.config.invocation import command_line, near

    place = folder or Path() if agent else folder or Path("demo")
    written = write_config(place, agent) if agent else write_demo(place)
    for path in written:
        echo(path)
    config = near(written[0])
    if agent:
        echo(f"next: put your tasks into {place / 'tasks.jsonl'}, set the model in {config}, then try one episode:")
        echo(f"  {command_line('doctor', config)}")
    else:
        echo("next:")
    echo(f"  {command_line('run', config)}")
