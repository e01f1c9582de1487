"""`agentrl plugins check` and `agentrl plugins new`, registered as commands of agentrl-testing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl_core.config.invocation import command_line, pip_install, pytest_call
from agentrl_core.plugins.manager import load_registry
from agentrl_testing.scaffold.kinds import SCAFFOLDS


def check(name: Annotated[str, typer.Argument(help="Name of the package; default: all packages.")] = "") -> None:
    """Import and check everything that packages register.

    The exit code is 1 if any package has a fault. Notes are advice for its author.
    """
    from agentrl_testing.plugins import plugin_advice, plugin_problems

    registry = load_registry()
    failed = False
    for package in [registry.package(name)] if name else registry.packages:
        if package.status == "blocked" and not name:
            typer.echo(f"{package.distribution} {package.version}: {package.trouble}")
            continue
        problems = plugin_problems(package, registry)
        failed = failed or bool(problems)
        typer.echo(f"{package.distribution} {package.version}: {'failed' if problems else 'ok'}")
        for problem in problems:
            typer.echo(f"  {problem}")
        for note in plugin_advice(package):
            typer.echo(f"  note: {note}")
    if failed:
        raise typer.Exit(1)


def new(
    name: Annotated[str, typer.Argument(help="Name of the package, such as agentrl-lab.")],
    *,
    kind: Annotated[
        list[str], typer.Option(help=f"Component of the package; may be repeated: {', '.join(SCAFFOLDS)}.")
    ],
    directory: Annotated[Path, typer.Option(help="Folder to write it into.")] = Path(),
) -> None:
    """Write a new plugin package with a component of each given kind.

    The package passes the conformance tests of its kinds without changes.
    """
    from agentrl_testing.scaffold.package import write_package

    for path in write_package(name, kind, directory):
        typer.echo(path)
    package = str(directory / name)
    steps = (pip_install("-e", package), pytest_call(package), command_line("plugins", "check", name))
    typer.echo(f"next: {' && '.join(steps)}")
