"""Way to a server that is one process for all episodes, started again when it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.http import Backoff
from agentrl_core.errors import DeliveryUnknownError, EnvironmentLostError, ToolServerError
from agentrl_mcp.backend import START_ERRORS, Facts, Listing, not_sent, one_line
from agentrl_mcp.connection import Connection
from agentrl_mcp.rpc import LinkLostError
from agentrl_mcp.stdio_link import StdioLink

if TYPE_CHECKING:
    from agentrl_core.api.tools import ToolEpisode, ToolResult
    from agentrl_mcp.process import Launch

_BACKOFF = Backoff(first_s=0.2, longest_s=10.0)
"""Waits before a process that has ended, again and again, is started anew; the first start is at once."""


@attrs.frozen(eq=False)
class Started:
    """A process that is ready for requests."""

    link: StdioLink
    connection: Connection
    listing: Listing

    @classmethod
    async def of(cls, launch: Launch, facts: Facts, listing: Listing) -> Started:
        """Start a process, and wait until it is ready; raises `ToolServerError` with what it printed last."""
        link = await StdioLink.start(launch, most_bytes=facts.most_bytes, on_notification=listing.note)
        try:
            connection = Connection(
                link=link, name=facts.name, elicitation=facts.elicitation, param_headers=listing.param_headers
            )
            async with asyncio.timeout(facts.start_timeout_s):
                listing.negotiated = await connection.begin(
                    timeout_s=facts.start_timeout_s, wanted=facts.protocol, known=listing.negotiated
                )
                if listing.is_stale:
                    await listing.read(connection, facts.start_timeout_s)
        except TimeoutError:
            await link.close()
            raise ToolServerError(f"{facts.name}: was not ready within {facts.start_timeout_s:g} s") from None
        except START_ERRORS as error:
            await link.close()
            text = one_line(error)
            raise ToolServerError(text if text.startswith(facts.name) else f"{facts.name}: {text}") from error
        except BaseException:
            await link.close()
            raise
        return cls(link, connection, listing)


class SharedProcess:
    """One process that all episodes use."""

    def __init__(self, launch: Launch, facts: Facts) -> None:
        self._launch, self._facts = launch, facts
        self.name, self.limit_s = facts.name, facts.start_timeout_s
        self.listing = Listing()
        self._started: Started | None = None
        self._starting = asyncio.Lock()
        self._failures = 0
        """Ends of the process in a row, without an answer in between."""
        self._not_before = 0.0
        self.generation = 0
        """Number of the process, counted from 1."""

    async def start(self) -> None:
        """Start the process and list its tools."""
        self._started = await Started.of(self._launch, self._facts, self.listing)
        self.generation = 1

    async def ready(self) -> Connection:
        """Return the connection to the process; start it if it has ended. Raises `ToolNotSentError`."""
        async with self._starting:
            loop = asyncio.get_running_loop()
            if self._started is not None and self._started.link.is_alive:
                return self._started.connection
            await asyncio.sleep(max(self._not_before - loop.time(), 0.0))
            if self._started is not None:
                await self._started.link.close()
                self._started = None
            wait_s = _BACKOFF.wait_s(self._failures)
            self._failures += 1
            try:
                self._started = await Started.of(self._launch, self._facts, self.listing)
            except ToolServerError as error:
                raise not_sent(self._facts.name, error) from error
            finally:
                self._not_before = loop.time() + wait_s
            self.generation += 1
            return self._started.connection

    def note_answer(self) -> None:
        """Note that the process works."""
        self._failures = 0

    async def open(self, episode: ToolEpisode) -> SharedProcessChannel:
        """Return the way of an episode."""
        return SharedProcessChannel(self, episode, keeps_state=self._facts.isolation == "session")

    async def relist(self) -> None:
        """List the tools again."""
        await self.listing.read(await self.ready(), self.limit_s)

    async def close(self) -> None:
        """End the process."""
        async with self._starting:
            if self._started is not None:
                await self._started.link.close()


class SharedProcessChannel:
    """Way of one episode to the process of all episodes.

    `keeps_state`: the server keeps something for the episode, which the end of its process takes with it.
    """

    def __init__(self, server: SharedProcess, episode: ToolEpisode, *, keeps_state: bool) -> None:
        self._server, self._episode, self._keeps_state = server, episode, keeps_state
        self._generation = 0
        """Number of the process that got the first call."""
        self.listing = server.listing

    async def relist(self) -> None:
        """List the tools again, for all episodes."""
        await self._server.relist()

    async def call(self, tool: str, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """Call a tool."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        lost: LinkLostError
        for _ in range(2):
            try:
                async with asyncio.timeout_at(end):
                    connection = await self._server.ready()
            except TimeoutError:
                raise not_sent(self._server.name, TimeoutError("the server's process is not ready")) from None
            self._check(connection.name)
            try:
                result = await connection.call(
                    tool,
                    arguments,
                    timeout_s=max(end - loop.time(), 0.001),
                    episode=self._episode,
                    tell=self._keeps_state,
                )
            except LinkLostError as error:
                if error.sent:
                    raise DeliveryUnknownError(str(error)) from error
                lost = error
            else:
                self._server.note_answer()
                return result
        raise not_sent(connection.name, lost)

    def _check(self, name: str) -> None:
        """Raise `EnvironmentLostError` if what the server kept for the episode ended with an earlier process."""
        if not self._generation:
            self._generation = self._server.generation
        elif self._keeps_state and self._generation != self._server.generation:
            raise EnvironmentLostError(f"{name}: the server's process ended, and a new one was started", server=name)

    async def close(self) -> None:
        """Do nothing: the process stays."""
