"""Way to a server over streamable HTTP: one pool of connections for all episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import attrs

from agentrl_core.api.http import Backoff, ServerClient
from agentrl_core.errors import EnvironmentLostError, ToolNotSentError, ToolServerError
from agentrl_mcp.backend import START_ERRORS, Facts, Listing, not_sent, one_line
from agentrl_mcp.connection import Connection
from agentrl_mcp.http_link import HttpLink
from agentrl_mcp.rpc import LinkLostError

if TYPE_CHECKING:
    from agentrl_core.api.tools import ToolEpisode, ToolResult
    from agentrl_mcp.connection import Protocol
    from agentrl_mcp.oauth import Login

PLACEHOLDER = "{episode}"
_BEGINNING = "start"
"""Text in place of the episode's id for the requests before the first episode."""
_MOST_STREAMS = 4096
"""Sessions that listen for questions at the same time."""
_BACKOFF = Backoff(first_s=0.2, longest_s=2.0)


class HttpServer:
    """A server at a URL. With `isolation: session` each episode has a session of the protocol, if the server has any.

    The episode's id is in the header `x-agentrl-episode`, in `_meta`, and in the URL where it has `{episode}`.
    """

    def __init__(
        self,
        url: str,
        facts: Facts,
        *,
        headers: Mapping[str, str],
        proxy: str | None,
        max_connections: int,
        login: Login | None = None,
    ) -> None:
        parts = urlsplit(url)
        self._path = parts.path + (f"?{parts.query}" if parts.query else "")
        self.facts, self._headers, self._login = facts, headers, login
        self._slots = asyncio.Semaphore(max_connections)
        self._client = ServerClient(
            f"{parts.scheme}://{parts.netloc}",
            proxy=proxy,
            connect_timeout_s=min(5.0, facts.start_timeout_s),
            # The semaphore is the limit; cancellations and answers to the server's questions may exceed it.
            max_connections=max_connections + 64,
            resends=False,
        )
        # Streams that stay open must not take the connections of calls.
        self._streams = ServerClient(f"{parts.scheme}://{parts.netloc}", proxy=proxy, max_connections=_MOST_STREAMS)
        self.listing = Listing()
        self._shared = HttpSession(self, _BEGINNING, self.listing, is_own=False)

    def link(self, episode_id: str, listing: Listing) -> HttpLink:
        """Return a link to the endpoint of an episode."""
        return HttpLink(
            client=self._client,
            streams=self._streams,
            path=self._path.replace(PLACEHOLDER, quote(episode_id, safe="")),
            name=self.facts.name,
            headers=self._headers,
            most_bytes=self.facts.most_bytes,
            on_notification=listing.note,
            slots=self._slots,
            login=self._login,
        )

    async def start(self) -> None:
        """Connect and list the tools; tries again for as long as the server may need to start."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.facts.start_timeout_s
        tries = 0
        while True:
            left_s = max(end - loop.time(), 0.1)
            try:
                if self._login is not None and self._login.is_starting:
                    await self._shared.link.log_in()
                    self._login.is_starting = False
                    end = loop.time() + left_s
                self.listing.negotiated = await self._shared.connect(left_s)
                await self.listing.read(self._shared.connection, left_s)
            except ToolServerError:
                raise
            except START_ERRORS as error:
                wait_s = _BACKOFF.wait_s(tries)
                if loop.time() + wait_s > end:
                    remedy = "; start the server, or correct `url`" if isinstance(error, ToolNotSentError) else ""
                    raise ToolServerError(one_line(error) + remedy) from error
                tries += 1
                await asyncio.sleep(wait_s)
            else:
                return

    async def open(self, episode: ToolEpisode) -> HttpChannel:
        """Return the way of an episode; a session begins with the first call."""
        is_own = self.facts.isolation == "session"
        session = HttpSession(self, episode.record_id, self.listing.copy(), is_own=True) if is_own else self._shared
        return HttpChannel(session, episode, is_own)

    async def close(self) -> None:
        """End the shared session, and all connections."""
        await self._shared.close()
        self._client.close()
        self._streams.close()


class HttpSession:
    """A connection to a server at a URL, whose session begins with the first request, and anew if the server forgot it.

    `is_own`: it belongs to one episode, whose state a forgotten session takes with it.
    """

    def __init__(self, server: HttpServer, episode_id: str, listing: Listing, *, is_own: bool) -> None:
        self.link = server.link(episode_id, listing)
        self._server, self._is_own, self.listing = server, is_own, listing
        facts = server.facts
        self.connection = Connection(
            link=self.link,
            name=facts.name,
            elicitation=facts.elicitation,
            param_headers=listing.param_headers,
            listen=self.link.listen,
        )
        self._connecting = asyncio.Lock()
        self._was_called = False

    async def connect(self, timeout_s: float) -> Protocol:
        """Begin, and return the outcome of the negotiation."""
        wanted, known = self._server.facts.protocol, self.listing.negotiated
        return await self.connection.begin(timeout_s=timeout_s, wanted=wanted, known=known)

    async def ready(self, timeout_s: float) -> Connection:
        """Return the connection, with its session begun; raises `ToolNotSentError`."""
        async with self._connecting:
            if self.connection.protocol is None:
                try:
                    await self.connect(timeout_s)
                except START_ERRORS as error:
                    raise not_sent(self.connection.name, error) from error
        return self.connection

    async def call(
        self, tool: str, arguments: Mapping[str, Any], *, timeout_s: float, episode: ToolEpisode | None
    ) -> ToolResult:
        """Call a tool, with the errors of `ToolSession.call`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        lost: Exception
        for _ in range(2):
            connection = await self.ready(max(end - loop.time(), 0.001))
            session_id = self.link.session_id
            left_s = max(end - loop.time(), 0.001)
            try:
                result = await connection.call(tool, arguments, timeout_s=left_s, episode=episode, tell=self._is_own)
            except LinkLostError as error:
                if self._is_own and self._was_called:
                    raise EnvironmentLostError(str(error), server=connection.name) from error
                lost = error
                # Of several calls that are told so, the first one begins the new session.
                if self.link.session_id == session_id:
                    self.link.forget()
                    connection.protocol = None
            else:
                self._was_called = True
                return result
        raise not_sent(connection.name, lost)

    async def relist(self) -> None:
        """List the tools again."""
        limit_s = self._server.facts.start_timeout_s
        await self.listing.read(await self.ready(limit_s), limit_s)

    async def close(self) -> None:
        """End the session."""
        await self.link.close()


@attrs.frozen
class HttpChannel:
    """Way of one episode to a server at a URL."""

    session: HttpSession
    episode: ToolEpisode
    is_own: bool
    """The session ends with the episode."""

    @property
    def listing(self) -> Listing:
        """The tools of the session."""
        return self.session.listing

    async def relist(self) -> None:
        """List the tools again."""
        await self.session.relist()

    async def call(self, tool: str, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """Call a tool."""
        return await self.session.call(tool, arguments, timeout_s=timeout_s, episode=self.episode)

    async def close(self) -> None:
        """End the session, if it is the episode's own."""
        if self.is_own:
            await self.session.close()
