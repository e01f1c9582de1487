"""`agentrl config`: what a config amounts to, and whether a run could start with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl_core.errors import ConfigError

app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True)

_Config = Annotated[Path, typer.Argument(help="YAML file.")]
_Overrides = Annotated[list[str] | None, typer.Argument(help="Options of the config, as a.b=c.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def config() -> None:
    """Show and check configs."""


@app.command()
def show(config: _Config, overrides: _Overrides = None, *, as_json: _Json = False) -> None:
    """Print the whole config, defaults included, in native spelling."""
    from agentrl_core.cli.output import print_json
    from agentrl_core.config import dump, load
    from agentrl_core.config.yaml_text import write_yaml

    plain = dump(load(config, overrides or ()).run)
    if as_json:
        print_json(plain)
    else:
        typer.echo(write_yaml(plain), nl=False)


@app.command()
def check(config: _Config, overrides: _Overrides = None) -> None:
    """Check what can be checked before a run starts: options, components, agent, tasks.

    Imports what the config names, the agent's module among it, and starts nothing.
    """
    from agentrl_core.config import load
    from agentrl_core.run.checks import check_config

    problems, notes = check_config(load(config, overrides or ()))
    for note in notes:
        typer.echo(f"note: {note}")
    if problems:
        raise ConfigError("\n".join(problems))
    typer.echo("ok")
