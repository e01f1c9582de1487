"""`agentrl tools`: lists, calls and serves the tools of a config, without a run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl_core.cli.printing import echo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentrl_core.tools.listing import Listing
    from agentrl_core.types import ToolCall

app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True)

_Config = Annotated[Path, typer.Argument(help="YAML file.")]
_Overrides = Annotated[list[str] | None, typer.Argument(help="Options to change, such as tools.timeout_s=5.")]
_Task = Annotated[str, typer.Option("--task", help="Id of a task; servers may need its row.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_OVERRIDE = re.compile(r"[a-z][\w.-]*=")
_LONGEST = 80
"""Characters of a description in the table."""
_MOST_PRINTED = 200
"""Lines of servers that are shown with a call that failed."""


@app.callback()
def tools() -> None:
    """List, call and serve the tools of a config."""


@app.command("list")
def list_(
    config: _Config,
    overrides: _Overrides = None,
    *,
    task: _Task = "",
    as_openai: Annotated[
        bool, typer.Option("--openai", help="Print the JSON that requests and demonstrations have in `tools`.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """List the tools that the model is offered, each with its server.

    Starts the config's tool servers, and ends them again.
    """
    from agentrl_core.cli.output import print_json, print_table
    from agentrl_core.config import load
    from agentrl_core.run.tools import tools_without_a_run
    from agentrl_core.tools.schemas import openai_tools

    loaded = load(config, overrides or ())

    async def listed() -> Listing:
        async with tools_without_a_run(loaded, task, []) as opened:
            return await opened.listing()

    listing = asyncio.run(listed())
    if as_openai:
        print_json(openai_tools(listing.offered))
        return
    found = _facts(listing)
    if as_json:
        print_json(found)
        return
    rows = [(item["name"], item["server"], item["isolation"], _short(item["description"])) for item in found]
    print_table(("tool", "server", "isolation", "description"), rows)


@app.command()
def call(
    config: _Config,
    name: Annotated[str, typer.Argument(help="Name of the tool, as the model sees it.")],
    arguments: Annotated[str, typer.Argument(help="Arguments as a JSON object.")] = "{}",
    overrides: _Overrides = None,
    *,
    task: _Task = "",
    as_json: _Json = False,
) -> None:
    """Call a tool as an agent would, with all checks, limits and middleware, and print what the model is shown.

    The exit code is 1 if the call did not succeed; what the server printed is shown then. `--json` prints the row that
    a run would record.
    """
    from agentrl_core.cli.output import print_json
    from agentrl_core.config import load
    from agentrl_core.errors import EnvironmentLostError
    from agentrl_core.run.tools import tools_without_a_run
    from agentrl_core.types import ToolOutcome

    if _OVERRIDE.match(arguments):
        # `call CONFIG NAME tools.timeout_s=5`: a tool without arguments needs no `{}` before the options.
        arguments, overrides = "{}", [arguments, *(overrides or ())]
    loaded = load(config, overrides or ())
    calls: list[ToolCall] = []

    async def called() -> None:
        async with tools_without_a_run(loaded, task, calls) as opened:
            # The row says it, too.
            with contextlib.suppress(EnvironmentLostError):
                await opened.call(name, arguments)

    with _server_output() as printed:
        asyncio.run(called())
    (row,) = calls
    if as_json:
        print_json(row)
    else:
        for part in row.shown:
            echo(part["text"] if part["type"] == "text" else f"({part['type']})")
        if row.outcome is not ToolOutcome.OK:
            echo(f"{row.outcome.value}: {row.error}" if row.error else row.outcome.value, err=True)
            for line in printed[-_MOST_PRINTED:]:
                echo(line, err=True)
    if row.outcome is not ToolOutcome.OK:
        raise typer.Exit(1)


@contextlib.contextmanager
def _server_output() -> Iterator[list[str]]:
    """Yield the list to which the lines that servers' processes print are added."""
    from agentrl_core.api.tools import SERVER_OUTPUT

    logger, handler = logging.getLogger(SERVER_OUTPUT), logging.Handler()
    lines: list[str] = []
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@app.command()
def serve(
    config: _Config,
    overrides: _Overrides = None,
    *,
    task: _Task = "",
    port: Annotated[
        int | None, typer.Option(help="Serve over HTTP at this port (0: any free one), not over stdin and stdout.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on, with --port.")] = "127.0.0.1",
) -> None:
    """Serve the config's tools to other programs over MCP, with all checks, limits and middleware, until Ctrl-C."""
    from agentrl_core.config import load
    from agentrl_core.config.invocation import pip_install
    from agentrl_core.errors import PluginError
    from agentrl_core.plugins.manager import load_registry
    from agentrl_core.run.tools import tools_without_a_run

    loaded = load(config, overrides or ())
    hooks = load_registry(loaded.run.plugins.block).hooks

    async def served() -> None:
        async with tools_without_a_run(loaded, task, []) as opened:
            serving = hooks.serve_tools(opened, host=host, port=port)
            if serving is None:
                raise PluginError(f"no installed package serves tools; {pip_install('agentrl-mcp')}")
            await serving

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(served())


def _facts(listing: Listing) -> list[dict[str, Any]]:
    facts = []
    for spec in listing.offered:
        tool = listing.by_name.get(spec.name)
        facts.append(
            {
                "name": spec.name,
                "server": tool.server.name if tool else "",
                "tool": tool.spec.name if tool else "",
                "isolation": tool.server.server.isolation if tool else "",
                "description": spec.description,
                "parameters": dict(spec.parameters),
                "read_only": spec.read_only,
                "idempotent": spec.idempotent,
            }
        )
    return facts


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
