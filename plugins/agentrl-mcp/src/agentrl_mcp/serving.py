"""Serve the tools of an episode as an MCP server, over standard input and output or over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from agentrl_core.errors import ConfigError, EnvironmentLostError
from agentrl_core.types import ToolOutcome
from agentrl_mcp import results

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.server.context import ServerRequestContext
    from mcp_types import CallToolRequestParams, CallToolResult, ContentBlock, ListToolsResult, PaginatedRequestParams

    from agentrl_core.api.tools import EpisodeTools, ToolResult

PATH = "/mcp"
_END_S = 3.0
"""Longest time that calls under way get when an HTTP server ends."""


async def serve(
    tools: EpisodeTools,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    started: Callable[[str], None] | None = None,
) -> None:
    """Serve tools until this call is cancelled, or until standard input ends.

    Without `port` over standard input and output, else over HTTP at `http://host:port/mcp` (0: any free port), which
    `started` is told; without it the address is written to standard error. All clients share the state of the tools.
    There is no authentication: an address that other machines reach is for networks that are trusted. Raises
    `ConfigError` for an address that cannot be used.
    """
    server = server_of(tools)
    if port is None:
        from mcp.server.stdio import stdio_server

        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())
        return
    await _serve_http(server, host, port, started or _say)


def server_of(tools: EpisodeTools) -> Server[Any]:
    """Return a server object of the SDK that has these tools."""
    from mcp import MCPError
    from mcp.server import Server
    from mcp_types import INVALID_PARAMS, ListToolsResult, Tool, ToolAnnotations

    async def list_tools(_: ServerRequestContext, __: PaginatedRequestParams | None) -> ListToolsResult:
        found = [
            Tool(
                name=spec.name,
                description=spec.description,
                input_schema=dict(spec.parameters),
                annotations=ToolAnnotations(read_only_hint=spec.read_only, idempotent_hint=spec.idempotent),
            )
            for spec in await tools.specs()
        ]
        return ListToolsResult(tools=found)

    async def call_tool(_: ServerRequestContext, params: CallToolRequestParams) -> CallToolResult:
        try:
            shown = await tools.call(params.name, params.arguments or {})
        except EnvironmentLostError as error:
            from agentrl_core.api.tools import ToolResult

            return wire_result(ToolResult.of_text(str(error), is_error=True))
        if shown.outcome is ToolOutcome.UNKNOWN_TOOL:
            raise MCPError(code=INVALID_PARAMS, message=shown.result.text)
        return wire_result(shown.result)

    return Server("agentrl", version=version("agentrl-mcp"), on_list_tools=list_tools, on_call_tool=call_tool)


def wire_result(result: ToolResult) -> CallToolResult:
    """Return a result of core in MCP's form."""
    from mcp_types import CallToolResult

    # Only an object: versions before 2026-07-28 know no other structured content.
    structured = dict(result.structured) if isinstance(result.structured, Mapping) else None
    content = [_block(part) for part in result.content]
    return CallToolResult(content=content, structured_content=structured, is_error=result.is_error)


def _block(part: Mapping[str, Any]) -> ContentBlock:
    from mcp_types import (
        BlobResourceContents,
        ContentBlock,
        EmbeddedResource,
        ImageContent,
        ResourceLink,
        TextContent,
        TextResourceContents,
    )
    from pydantic import TypeAdapter

    match part:
        case {results.BLOCK: block}:
            found: ContentBlock = TypeAdapter(ContentBlock).validate_python(block)
            return found
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            head, comma, data = url.partition(";base64,")
            if not comma or not head.startswith("data:"):
                return ResourceLink(type="resource_link", name="image", uri=url)
            mime = head.removeprefix("data:")
            if uri := part.get("uri"):
                image = BlobResourceContents(uri=uri, blob=data, mime_type=mime)
                return EmbeddedResource(type="resource", resource=image)
            return ImageContent(type="image", data=data, mime_type=mime)
        case {"type": "text", "text": str(text), "uri": str(uri)}:
            page = TextResourceContents(uri=uri, text=text, mime_type=part.get("mimeType"))
            return EmbeddedResource(type="resource", resource=page)
    return TextContent(type="text", text=str(part.get("text", "")))


async def _serve_http(server: Server[Any], host: str, port: int, started: Callable[[str], None]) -> None:
    import uvicorn

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    with listening:
        app = server.streamable_http_app(streamable_http_path=PATH, json_response=True, host=host)
        config = uvicorn.Config(app, log_config=None, lifespan="on", ws="none", timeout_graceful_shutdown=int(_END_S))
        runner = uvicorn.Server(config)
        # Ctrl-C is for the program, which cancels this call.
        runner.capture_signals = contextlib.nullcontext  # type: ignore[assignment,method-assign]
        serving = asyncio.get_running_loop().create_task(runner.serve(sockets=[listening]))
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        started(f"http://{shown}:{listening.getsockname()[1]}{PATH}")
        try:
            await asyncio.shield(serving)
        finally:
            runner.should_exit = True
            await asyncio.wait({serving}, timeout=2 * _END_S)


def _say(address: str) -> None:
    sys.stderr.write(f"serving tools at {address}\n")
