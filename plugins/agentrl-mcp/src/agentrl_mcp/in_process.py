"""Way to a server object of the SDK or of FastMCP in this process, without any transport."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.errors import DeliveryUnknownError, InvalidResultError, ToolServerError
from agentrl_mcp.backend import Facts, Listing, one_line
from agentrl_mcp.connection import EPISODE_META
from agentrl_mcp.results import result_of, spec_of, text_of_error
from agentrl_mcp.rpc import RpcError

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client import ClientRequestContext
    from mcp_types import ElicitRequestParams, ElicitResult, ErrorData

    from agentrl_core.api.tools import ToolEpisode, ToolResult

_episode: contextvars.ContextVar[ToolEpisode | None] = contextvars.ContextVar("agentrl_mcp_episode", default=None)
"""Episode whose call is under way, for the answers to elicitations."""


class InProcess:
    """A server object that all episodes use; the SDK's client calls it directly."""

    def __init__(self, server: object, facts: Facts) -> None:
        self._server, self._facts = server, facts
        self.listing = Listing()
        self._client: Client | None = None
        self._owner: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None]
        self._stop = asyncio.Event()

    async def start(self) -> None:
        """Start the server's lifespan and list its tools."""
        self._ready = asyncio.get_running_loop().create_future()
        # The client's scopes must end in the task in which they began.
        self._owner = asyncio.get_running_loop().create_task(self._own())
        async with asyncio.timeout(self._facts.start_timeout_s):
            await self._ready
        await self.relist()

    async def _own(self) -> None:
        from mcp import Client

        try:
            async with Client(_low_level(self._server), elicitation_callback=self._elicit, cache=None) as self._client:
                self._ready.set_result(None)
                await self._stop.wait()
        except Exception as error:
            if self._ready.done():
                raise
            told = f"{type(error).__name__}: {one_line(error)}"
            self._ready.set_exception(ToolServerError(f"{self._facts.name}: the server does not start: {told}"))

    @property
    def client(self) -> Client:
        """The SDK's client."""
        if self._client is None:
            raise ToolServerError(f"{self._facts.name}: the server was not started")
        return self._client

    async def _elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        from mcp_types import ElicitResult

        del context
        asked = params.model_dump(by_alias=True, mode="json")
        answer = await self._facts.elicitation.answer("elicitation/create", asked, _episode.get())
        return ElicitResult.model_validate(answer)

    async def open(self, episode: ToolEpisode) -> InProcessChannel:
        """Return the way of an episode."""
        return InProcessChannel(self, self._facts, episode)

    async def relist(self) -> None:
        """List the tools again."""
        specs, cursor = [], None
        while True:
            page = await self.client.list_tools(cursor=cursor)
            specs += [
                spec_of(tool.model_dump(by_alias=True, mode="json", exclude_none=True), server=self._facts.name)
                for tool in page.tools
            ]
            cursor = page.next_cursor
            if not cursor:
                break
        self.listing.specs, self.listing.is_stale = tuple(specs), False

    async def close(self) -> None:
        """End the server's lifespan."""
        self._stop.set()
        if self._owner is not None:
            await asyncio.wait({self._owner}, timeout=self._facts.start_timeout_s)


@attrs.frozen
class InProcessChannel:
    """Way of one episode to a server object."""

    server: InProcess
    facts: Facts
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
        from mcp import MCPError
        from pydantic import ValidationError

        from agentrl_core.api.tools import ToolResult

        meta: Any = {EPISODE_META: self.episode.record_id} if self.facts.isolation == "session" else None
        token = _episode.set(self.episode)
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self.server.client.call_tool(tool, dict(arguments), meta=meta)
        except TimeoutError:
            raise DeliveryUnknownError(f"{self.facts.name}: no answer within {timeout_s:.3g} s") from None
        except (MCPError, RpcError) as error:
            data = error.error.data if isinstance(error, MCPError) else error.data
            return ToolResult.of_text("\n".join(text_of_error(str(error), data)), is_error=True)
        except ValidationError as error:
            raise InvalidResultError(
                f"{self.facts.name}: {tool}: its result is not valid: {one_line(error)}"
            ) from error
        finally:
            _episode.reset(token)
        return result_of(
            answer.model_dump(by_alias=True, mode="json", exclude_none=True), tool=f"{self.facts.name}: {tool}"
        )

    async def close(self) -> None:
        """Do nothing: the server stays."""


def is_server(value: object) -> bool:
    """Return whether a value is a server object."""
    from mcp.server import MCPServer, Server

    return isinstance(value, MCPServer | Server) or isinstance(getattr(value, "_mcp_server", None), Server)


def _low_level(server: Any) -> Any:
    """Return the object that the SDK's client takes; FastMCP's server holds one."""
    return getattr(server, "_mcp_server", server)
