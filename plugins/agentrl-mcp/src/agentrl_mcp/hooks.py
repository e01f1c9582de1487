"""Hook of agentrl-mcp: serve tools, for `agentrl tools serve`."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from agentrl_core import hookimpl

if TYPE_CHECKING:
    from agentrl_core.api.tools import EpisodeTools


@hookimpl
def serve_tools(tools: EpisodeTools, host: str, port: int | None) -> Coroutine[Any, Any, None]:
    """Serve tools as an MCP server."""
    from agentrl_mcp.serving import serve

    return serve(tools, host=host, port=port)
