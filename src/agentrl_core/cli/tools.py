"""`agentrl tools`: lists, calls and serves the tools of a config, without a run."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
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


@app.callback()
def tools() -> None:
    """List, call and serve the tools of a config."""


@app.command("list")
def list_(config: _Config, overrides: _Overrides = None, *, task: _Task = "", as_json: _Json = False) -> None:
    """List the tools that the model is offered, each with its server.

    Starts the config's tool servers, and ends them again.
    """
    from agentrl_core.cli.output import print_json, print_table
    from agentrl_core.config import load
    from agentrl_core.run.tools import tools_without_a_run

    loaded = load(config, overrides or ())

    async def listed() -> Listing:
        async with tools_without_a_run(loaded, task, []) as opened:
            return await opened.listing()

    found = _facts(asyncio.run(listed()))
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

    The exit code is 1 if the call did not succeed. `--json` prints the row that a run would record.
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

    asyncio.run(called())
    (row,) = calls
    if as_json:
        print_json(row)
    else:
        for part in row.shown:
            typer.echo(part["text"] if part["type"] == "text" else f"({part['type']})")
        if row.outcome is not ToolOutcome.OK:
            typer.echo(f"{row.outcome.value}: {row.error}" if row.error else row.outcome.value, err=True)
    if row.outcome is not ToolOutcome.OK:
        raise typer.Exit(1)


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
