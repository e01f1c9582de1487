"""`agentrl config show` and `config check`: print a config with all defaults, and find its problems before a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from agentrl_core.cli.printing import echo
from agentrl_core.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from agentrl_core.config import LoadedConfig
    from agentrl_core.config.schema import RunConfig
    from agentrl_core.config.sft import SftConfig

app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True)

_Config = Annotated[Path, typer.Argument(help="YAML file.")]
_Overrides = Annotated[list[str] | None, typer.Argument(help="Options to change, such as trainer.steps=20.")]
_Sft = Annotated[bool, typer.Option("--sft", help="The config is for `agentrl sft`.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

C = TypeVar("C", bound="RunConfig | SftConfig")


@app.callback()
def config() -> None:
    """Show and check configs."""


@app.command()
def show(config: _Config, overrides: _Overrides = None, *, sft: _Sft = False, as_json: _Json = False) -> None:
    """Print the whole config with agentrl's own option names, all defaults, and the options that the loss sets."""
    from agentrl_core.cli.output import print_json
    from agentrl_core.config import dump, load, load_as
    from agentrl_core.config.sft import SftConfig
    from agentrl_core.config.yaml_text import write_yaml

    assignments = overrides or ()
    plain = dump(_settled(load_as(SftConfig, config, assignments)) if sft else _settled(load(config, assignments)))
    if as_json:
        print_json(plain)
    else:
        echo(write_yaml(plain), nl=False)


def _settled(loaded: LoadedConfig[C]) -> C:
    """Return the config as a run would use it, unchanged if its loss cannot be found; print notes on it."""
    from agentrl_core.plugins.manager import load_registry
    from agentrl_core.run.loss import settled

    for note in loaded.notes:
        typer.echo(f"note: {note}", err=True)
    plugins = loaded.run.plugins
    try:
        return settled(loaded, load_registry(plugins.block, on_error=plugins.on_error))
    except PluginError as error:
        echo(f"note: {error}", err=True)
        return loaded.run


@app.command()
def check(config: _Config, overrides: _Overrides = None, *, sft: _Sft = False) -> None:
    """Check a config before a run: options, components, agent, tasks.

    Imports the modules that the config names, including the agent's, and tries to start its tool servers. Starts no
    run.
    """
    problems, notes = _check_sft(config, overrides) if sft else _check_run(config, overrides)
    for note in notes:
        echo(f"note: {note}")
    if problems:
        raise ConfigError("\n".join(problems))
    echo("ok")


def _check_run(config: Path, overrides: list[str] | None) -> tuple[Sequence[str], Sequence[str]]:
    from agentrl_core.config import load
    from agentrl_core.run.checks import check_config
    from agentrl_core.run.tools import servers_down, start_problems

    loaded = load(config, overrides or ())
    problems, notes = check_config(loaded)
    problems = problems or list(start_problems(loaded))
    if not problems and (down := servers_down(loaded)):
        notes = [*notes, f"{loaded.where('tools.servers')}: {down}; the servers must be there when the run starts"]
    return problems, notes


def _check_sft(config: Path, overrides: list[str] | None) -> tuple[Sequence[str], Sequence[str]]:
    from agentrl_core.config import load_as
    from agentrl_core.config.sft import SftConfig
    from agentrl_core.run.sft import check_config

    return check_config(load_as(SftConfig, config, overrides or ())), ()
