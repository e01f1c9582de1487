"""The parts that all ways to a server share: the list of its tools, and the interface that `MCPTools` uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from agentrl_core.errors import AgentRLError, ToolNotSentError
from agentrl_mcp.rpc import LinkLostError, RpcError

if TYPE_CHECKING:
    from agentrl_core.api.tools import Isolation, ToolEpisode, ToolResult, ToolSpec
    from agentrl_mcp.connection import Connection
    from agentrl_mcp.connection import Protocol as Negotiated
    from agentrl_mcp.elicitation import Elicitation

LIST_CHANGED = "notifications/tools/list_changed"
FOLDER = "{folder}"
"""Placeholder for the folder of an episode's own process, in its command and environment."""
START_ERRORS = (RpcError, LinkLostError, AgentRLError)
"""Errors of a connection that does not come about."""


@attrs.frozen(kw_only=True)
class Facts:
    """Options that all ways to a server have."""

    name: str
    isolation: Isolation
    protocol: str
    """Version of the protocol to use; empty to find out."""
    start_timeout_s: float
    most_bytes: int
    """Largest message of the server in bytes."""
    elicitation: Elicitation


class Channel(Protocol):
    """Way of one episode to a server."""

    @property
    def listing(self) -> Listing:
        """The tools that the episode has; those of other episodes, too, where they share a session."""
        ...

    async def relist(self) -> None:
        """List the tools again; raises `ToolServerError`, and as `Link.request`."""
        ...

    async def call(self, tool: str, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """Call a tool, with the errors of `ToolSession.call`."""
        ...

    async def close(self) -> None:
        """Give up what the episode has on the server."""
        ...


class Backend(Protocol):
    """Way to a server for all episodes."""

    listing: Listing
    """The tools of a new episode."""

    async def start(self) -> None:
        """Connect and list the tools; raises `ToolServerError`, and whatever a connection raises."""
        ...

    async def open(self, episode: ToolEpisode) -> Channel:
        """Return the way of an episode."""
        ...

    async def close(self) -> None:
        """End everything."""
        ...


@attrs.define(eq=False)
class Listing:
    """The tools of a server, listed once, and again when the server says that they have changed."""

    specs: Sequence[ToolSpec] = ()
    negotiated: Negotiated | None = None
    """Outcome of the first negotiation, which later connections take over."""
    param_headers: dict[str, Mapping[tuple[str, ...], str]] = attrs.field(factory=dict)
    changes: int = 0
    """Number of times that the server has said that its tools changed."""
    is_stale: bool = True

    def copy(self) -> Listing:
        """Return the list for an episode whose server is its own: changes there are none of the other episodes."""
        return attrs.evolve(self, param_headers=dict(self.param_headers))

    def note(self, method: str) -> None:
        """Note a notification of the server."""
        if method == LIST_CHANGED:
            self.is_stale = True
            self.changes += 1

    async def read(self, connection: Connection, timeout_s: float) -> None:
        """List the tools."""
        self.is_stale = False
        try:
            self.specs = await connection.list_tools(timeout_s=timeout_s)
        except BaseException:
            self.is_stale = True
            raise


def one_line(error: BaseException) -> str:
    """Return an error as one line."""
    return " ".join(str(error).split()) or type(error).__name__


def not_sent(name: str, error: Exception) -> ToolNotSentError:
    """Return the error of a call whose connection did not come about."""
    text = one_line(error)
    return ToolNotSentError(text if text.startswith(name) else f"{name}: {text}")
