"""Sample command of the agentrl command line."""

import typer


def greet(name: str) -> None:
    """Say hello."""
    typer.echo(f"hello {name}")
