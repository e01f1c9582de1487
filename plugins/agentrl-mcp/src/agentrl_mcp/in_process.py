"""Way to a server object of the SDK or of FastMCP in this process, without any transport."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.errors import DeliveryUnknownError, ToolServerError
from agentrl_mcp.backend import START_ERRORS, Facts, Listing, not_sent, one_line
from agentrl_mcp.connection import STATELESS, Connection
from agentrl_mcp.rpc import METHOD_NOT_FOUND, Answer, Inquire, LinkLostError, RpcError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.shared.direct_dispatcher import DirectDispatcher

    from agentrl_core.api.tools import ToolEpisode, ToolResult


class InProcessLink:
    """Requests to a server object, by the SDK's dispatcher that calls it directly."""

    def __init__(self, server: Any, name: str, on_notification: Callable[[str], None]) -> None:
        self.version = ""
        self._server, self._name, self._on_notification = server, name, on_notification
        self._dispatcher: DirectDispatcher | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        # The server's lifespan must end in the task in which it began.
        self._owner = asyncio.get_running_loop().create_task(self._own())

    async def started(self) -> None:
        """Wait until the server's lifespan has begun."""
        await self._ready

    async def _own(self) -> None:
        import anyio
        from mcp import MCPError
        from mcp.server.runner import modern_on_request
        from mcp.shared.direct_dispatcher import create_direct_dispatcher_pair

        async def refuse(_: object, method: str, __: object) -> dict[str, Any]:
            raise MCPError(code=METHOD_NOT_FOUND, message=f"agentrl does not offer {method}")

        async def note(_: object, method: str, __: object) -> None:
            self._on_notification(method)

        async def ignore(_: object, __: str, ___: object) -> None: ...

        try:
            async with self._server.lifespan(self._server) as state, anyio.create_task_group() as tasks:
                ours, theirs = create_direct_dispatcher_pair(raise_handler_exceptions=False)
                await tasks.start(ours.run, refuse, note)
                await tasks.start(theirs.run, modern_on_request(self._server, state), ignore)
                self._dispatcher = ours
                self._ready.set_result(None)
                await self._stop.wait()
                ours.close()
                theirs.close()
        except Exception as error:
            if self._ready.done():
                raise
            self._ready.set_exception(ToolServerError(f"{self._name}: the server does not start: {_told(error)}"))

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        headers: Mapping[str, str] | None = None,  # noqa: ARG002 - for HTTP
        timeout_s: float,
        inquire: Inquire | None = None,  # noqa: ARG002 - a server asks by its results
    ) -> Answer:
        """Send a request, as `Link.request` says."""
        from mcp import MCPError

        if self._dispatcher is None:
            raise LinkLostError(f"{self._name}: the server was not started", sent=False)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._dispatcher.send_raw_request(method, params)
        except TimeoutError:
            raise DeliveryUnknownError(f"{self._name}: no answer to {method} within {timeout_s:.3g} s") from None
        except MCPError as error:
            raise RpcError(error.error.code, error.error.message, error.error.data) from error

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification; without sessions there are none that a server object wants."""

    async def close(self) -> None:
        """End the server's lifespan."""
        self._stop.set()
        if not self._ready.done():
            self._owner.cancel()
        await asyncio.wait({self._owner})
        if not self._owner.cancelled() and (error := self._owner.exception()) is not None:
            raise ToolServerError(f"{self._name}: the server's lifespan failed: {_told(error)}") from error


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {one_line(error)}"


class InProcess:
    """A server object that all episodes use."""

    def __init__(self, server: object, facts: Facts) -> None:
        # FastMCP's server holds one of the SDK, and so does the SDK's `MCPServer`.
        self._server = _low_level(server)
        self.facts = facts
        self.listing = Listing()
        self._link: InProcessLink | None = None
        self.connection: Connection

    async def start(self) -> None:
        """Start the server's lifespan and list its tools."""
        facts = self.facts
        self._link = InProcessLink(self._server, facts.name, self.listing.note)
        self.connection = Connection(
            link=self._link, name=facts.name, elicitation=facts.elicitation, param_headers=self.listing.param_headers
        )
        try:
            async with asyncio.timeout(facts.start_timeout_s):
                await self._link.started()
            await self.connection.begin(timeout_s=facts.start_timeout_s, wanted=STATELESS)
            await self.relist()
        except TimeoutError:
            raise ToolServerError(f"{facts.name}: was not ready within {facts.start_timeout_s:g} s") from None
        except ToolServerError:
            raise
        except START_ERRORS as error:
            raise ToolServerError(f"{facts.name}: {one_line(error)}") from error

    async def open(self, episode: ToolEpisode) -> InProcessChannel:
        """Return the way of an episode."""
        return InProcessChannel(self, episode)

    async def relist(self) -> None:
        """List the tools again."""
        await self.listing.read(self.connection, self.facts.start_timeout_s)

    async def close(self) -> None:
        """End the server's lifespan."""
        if self._link is not None:
            await self._link.close()


@attrs.frozen
class InProcessChannel:
    """Way of one episode to a server object."""

    server: InProcess
    episode: ToolEpisode

    @property
    def listing(self) -> Listing:
        """The tools of the server."""
        return self.server.listing

    async def relist(self) -> None:
        """List the tools again."""
        await self.server.relist()

    async def call(self, tool: str, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """Call a tool."""
        connection, tell = self.server.connection, self.server.facts.isolation == "session"
        try:
            return await connection.call(tool, arguments, timeout_s=timeout_s, episode=self.episode, tell=tell)
        except LinkLostError as error:
            raise not_sent(connection.name, error) from error

    async def close(self) -> None:
        """Do nothing: the server stays."""


def is_server(value: object) -> bool:
    """Return whether a value is a server object."""
    from mcp.server import Server

    return isinstance(_low_level(value), Server)


def _low_level(server: object) -> Any:
    """Return the SDK's `Server` that FastMCP's server, or the SDK's own `MCPServer`, is built on."""
    for attribute in ("_mcp_server", "_lowlevel_server"):
        server = getattr(server, attribute, server)
    return server
