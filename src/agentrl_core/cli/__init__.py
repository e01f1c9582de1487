"""Entry point of `agentrl`: finds the command, imports only that one, and turns errors into one line and an exit code.

`agentrl --help` must stay fast, so core's commands come from a table and those of plugins from package metadata.
"""

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

from agentrl_core.cli.printing import echo
from agentrl_core.errors import AgentRLError, PluginError, Terminated
from agentrl_core.plugins.builtins import COMMANDS
from agentrl_core.plugins.references import one_line, resolve

_LEAVING_S = 5.0
"""Longest wait at the end of the process for threads that an agent has started."""


class LazyGroup(TyperGroup):
    """Command group that imports a command only when it is used.

    The signatures use `Any`, because some versions of typer bring their own copy of click and others do not.
    """

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # the interface of a group
        """Return the command names in the order of the help: core's, then those of plugins."""
        registered = {name for name in _plugin_commands() if not name.startswith("plugins-")}
        return [*COMMANDS, *sorted(registered - COMMANDS.keys())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  # the interface of a group
        """Import a command; a name that is not core's is looked up in the registry, like any component."""
        if cmd_name in COMMANDS:
            summary, path = COMMANDS[cmd_name]
            return _command(resolve(path).value, cmd_name, summary)
        return _registered(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands with their summaries, without importing any."""
        owners = _plugin_commands()
        rows = [
            (name, COMMANDS[name][0] if name in COMMANDS else f"Provided by {owners[name]}.")
            for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; after Ctrl-C or SIGTERM print one line and exit with the signal's code."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            echo(str(stop) or "interrupted", err=True)
            raise typer.Exit(130) from None
        except Terminated as stop:
            echo(stop.message, err=True)
            raise


class PluginsGroup(TyperGroup):
    """`agentrl plugins`, with the commands that packages register as `plugins-NAME` beside core's own."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of core's commands, then those of packages."""
        registered = (name.removeprefix("plugins-") for name in _plugin_commands() if name.startswith("plugins-"))
        return [*super().list_commands(ctx), *sorted(registered)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command of core or of a package; for a known package that is missing, say how to install it."""
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
    """Return the click command for a typer app or a plain function."""
    if not isinstance(target, typer.Typer):
        function: Any = target
        target = typer.Typer(add_completion=False, rich_markup_mode=None)
        target.command(name, help=function.__doc__ or summary)(function)
    command: Any = typer.main.get_command(target)
    command.name = name
    return command


def _plugin_commands() -> dict[str, str]:
    """Return the commands that packages declare in their metadata, with the name of the package."""
    from agentrl_core.plugins.discovery import declared_commands

    return declared_commands()


def _print_help(ctx: typer.Context, value: bool) -> None:  # noqa: FBT001  # the signature of an option's callback
    if value:
        echo(ctx.get_help())
        raise typer.Exit


def _print_version(value: bool) -> None:  # noqa: FBT001  # the signature of an option's callback
    if value:
        from agentrl_core.plugins.discovery import core_version

        echo(f"agentrl {core_version()}")
        raise typer.Exit


# A replacement for typer's own help option in groups of light commands (`add_help_option=False`). typer validates its
# help option with pydantic even when it is not given, and that import takes half of a light command's time. A switch
# with a default is not validated.
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
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; also allowed after the command.")] = False,
    show_help: HelpSwitch = False,
) -> None:
    """Train the LLM agent that you already have with reinforcement learning."""
    # The switches act in their callbacks, except `--debug`, which `main` removes wherever it stands.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0, 1 for failure, 2 for usage, 3 for a run that learned nothing, 130 for Ctrl-C, 143 for SIGTERM.
    """
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
    except Exception as error:  # noqa: BLE001  # the last place that can turn it into one line
        return _fail(f"{one_line(error)} (--debug shows the traceback)", 1, debug=debug)
    return 0


def _bound_exit(code: int) -> None:
    """Make the process end with `code` within `_LEAVING_S`, even if threads that an agent has started never end.

    The interpreter joins all non-daemon threads before it exits. SIGINT is ignored meanwhile: it could only break off
    the exit with a traceback.
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
    # atexit callbacks run after all threads are joined, so the other callbacks have as much time as they need.
    atexit.register(timer.cancel)


def _fail(message: str, exit_code: int, *, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    echo(f"error: {message}", err=True)
    return exit_code
