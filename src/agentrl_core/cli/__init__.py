"""The command line: commands are listed without importing them, and imported when they are used."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from agentrl_core.errors import AgentRLError, PluginError, Terminated
from agentrl_core.plugins.builtins import COMMANDS
from agentrl_core.plugins.references import one_line, resolve

_LEAVING_S = 5.0
"""How long the end of the process waits for threads that an agent started."""


class LazyGroup(TyperGroup):
    """Commands of core from a table, those of plugins from metadata; only the one in use is imported.

    Typed loosely at the edge to typer, which brings its own copy of click, or not, depending on its version.
    """

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # the interface of a group
        """Names in the order of the help: core's, then plugins'."""
        registered = {name for name in _plugin_commands() if not name.startswith("plugins-")}
        return [*COMMANDS, *sorted(registered - COMMANDS.keys())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  # the interface of a group
        """Import a command; a name that is not core's is looked up as any component is."""
        if cmd_name in COMMANDS:
            summary, path = COMMANDS[cmd_name]
            return _command(resolve(path).value, cmd_name, summary)
        return _registered(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List all commands with their summaries, importing none."""
        owners = _plugin_commands()
        rows = [
            (name, COMMANDS[name][0] if name in COMMANDS else f"Provided by {owners[name]}.")
            for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C and SIGTERM end it with one line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            typer.echo(str(stop) or "interrupted", err=True)
            raise typer.Exit(130) from None
        except Terminated as stop:
            typer.echo(stop.message, err=True)
            raise


class PluginsGroup(TyperGroup):
    """`agentrl plugins`, with the commands that packages register as `plugins-NAME` beside core's own."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of core's, then of the packages' commands."""
        registered = (name.removeprefix("plugins-") for name in _plugin_commands() if name.startswith("plugins-"))
        return [*super().list_commands(ctx), *sorted(registered)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command of core's or of a package's; an unknown one is refused with the nearest, as click does."""
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        full = f"plugins-{cmd_name}"
        if full in _plugin_commands():
            return _registered(full)
        from agentrl_core.plugins.catalog import install_hint

        if hint := install_hint("commands", full):
            raise PluginError(f"`agentrl plugins {cmd_name}` needs a package: {hint}")
        return None


def _registered(name: str) -> Any:
    """Import a command that a package registered."""
    from agentrl_core.plugins.manager import load_registry

    registry = load_registry()
    entry = registry.find("commands", name)
    return _command(registry.load("commands", name), entry.name.removeprefix("plugins-"), entry.summary)


def _command(target: object, name: str, summary: str) -> Any:
    """Make a click command of a typer app or of a plain function."""
    if not isinstance(target, typer.Typer):
        function: Any = target
        target = typer.Typer(add_completion=False, rich_markup_mode=None)
        target.command(name, help=function.__doc__ or summary)(function)
    command: Any = typer.main.get_command(target)
    command.name = name
    return command


def _plugin_commands() -> dict[str, str]:
    """Commands that packages declare in their metadata -> the package."""
    from agentrl_core.plugins.discovery import declared_commands

    return declared_commands()


def _print_help(ctx: typer.Context, value: bool) -> None:  # noqa: FBT001  # the signature of an option's callback
    if value:
        typer.echo(ctx.get_help())
        raise typer.Exit


def _print_version(value: bool) -> None:  # noqa: FBT001  # the signature of an option's callback
    if value:
        from agentrl_core.plugins.discovery import core_version

        typer.echo(f"agentrl {core_version()}")
        raise typer.Exit


# typer's own help option is checked with pydantic, given or not, whose import takes half of the time of a light
# command; a switch with a default is not. For groups that light commands belong to, with `add_help_option=False`.
HelpSwitch = Annotated[
    bool, typer.Option("--help", "-h", callback=_print_help, is_eager=True, help="Show this message and exit.")
]

app = typer.Typer(
    cls=LazyGroup, rich_markup_mode=None, add_completion=False, add_help_option=False, no_args_is_help=True
)


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may also stand after the command.")] = False,
    show_help: HelpSwitch = False,
) -> None:
    """Train the LLM agent that you already have with reinforcement learning."""
    # The switches act in their callbacks, but for `--debug`, which `main` takes out wherever it stands.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 for failure, 2 for usage, 130 for Ctrl-C, 143 for SIGTERM."""
    if arguments is not None:
        return _main(list(arguments))
    code = _main(sys.argv[1:])
    _bound_exit(code)
    return code


def _main(given: list[str]) -> int:
    debug = "--debug" in given
    command: Any = typer.main.get_command(app)
    try:
        arguments = [item for item in given if item != "--debug"]
        command.main(args=arguments, prog_name="agentrl", help_option_names=["--help", "-h"])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except AgentRLError as error:
        return _fail(str(error), error.exit_code, debug=debug)
    except Exception as error:  # noqa: BLE001  # the last place that can turn it into a line
        return _fail(f"{one_line(error)} (--debug shows the traceback)", 1, debug=debug)
    return 0


def _bound_exit(code: int) -> None:
    """Let the process end with `code` although a thread of an agent's own, or of its pool, goes on for ever.

    The interpreter joins all of them before it ends. Ctrl-C could only break that end, with a traceback.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def leave() -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)

    timer = threading.Timer(_LEAVING_S, leave)
    timer.daemon = True
    timer.start()
    atexit.register(timer.cancel)  # called when all are joined: what else happens at exit has its time


def _fail(message: str, exit_code: int, *, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    typer.echo(f"error: {message}", err=True)
    return exit_code
