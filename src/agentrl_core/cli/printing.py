"""Print lines of commands: as `typer.echo`, without control characters of tasks, agents and tools."""

from __future__ import annotations

import typer

from agentrl_core.config.terminal import printable_lines


def echo(message: object = "", *, nl: bool = True, err: bool = False) -> None:
    """Print a message; control characters but line ends and tabs are escaped."""
    typer.echo(printable_lines(str(message)), nl=nl, err=err)
