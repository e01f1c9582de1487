"""Way to a server that is one process for all episodes, started again when it has ended or hangs."""

from __future__ import annotations

import asyncio
import logging
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

logger = logging.getLogger(__name__)

_BACKOFF = Backoff(first_s=0.2, longest_s=10.0)
"""Waits before a process that has ended, again and again, is started anew; the first start is at once."""

_PING_AFTER, _PING_FOR = 0.5, 0.25
"""Shares of a call's time limit: after the first one without a word of the process, it is sent a `ping`, and has the
second one for an answer. The rest is for the other calls, which a process that hangs delays as well."""
_LEAST_PING_S = 2.0


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
        self._pinging: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process and list its tools."""
        self._started = await Started.of(self._launch, self._facts, self.listing)
        self.generation = 1

    async def ready(self) -> Started:
        """Return the process; start it if it has ended. Raises `ToolNotSentError`."""
        async with self._starting:
            loop = asyncio.get_running_loop()
            if self._started is not None and self._started.link.is_alive:
                return self._started
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
            return self._started

    def note_answer(self) -> None:
        """Note that the process works."""
        self._failures = 0

    def watch(self, started: Started, limit_s: float) -> asyncio.TimerHandle:
        """Watch the process from now on, when a call is sent; the caller cancels the handle when the call ends.

        A process that says nothing to anybody, and gives no answer to a `ping`, is ended.
        """
        loop = asyncio.get_running_loop()
        return loop.call_later(_PING_AFTER * limit_s, self._suspect, started, loop.time(), limit_s)

    def _suspect(self, started: Started, since: float, limit_s: float) -> None:
        if started.link.is_alive and started.link.heard_at < since and (not self._pinging or self._pinging.done()):
            self._pinging = asyncio.get_running_loop().create_task(self._end_if_hung(started, since, limit_s))

    async def _end_if_hung(self, started: Started, since: float, limit_s: float) -> None:
        ping_s = max(_PING_FOR * limit_s, _LEAST_PING_S)
        try:
            await started.connection.ping(timeout_s=ping_s)
        except LinkLostError:
            return
        except DeliveryUnknownError:
            if started.link.heard_at >= since:
                return
            silent_s = asyncio.get_running_loop().time() - since
            started.link.give_up(
                f"{self.name}: hangs: it said nothing for {silent_s:.3g} s and did not answer a ping within "
                f"{ping_s:.3g} s, so its process was ended, and the next call starts a new one"
            )
            logger.warning("%s", started.link.hung)
            await started.link.close()

    async def open(self, episode: ToolEpisode) -> SharedProcessChannel:
        """Return the way of an episode."""
        return SharedProcessChannel(self, episode, keeps_state=self._facts.isolation == "session")

    async def relist(self) -> None:
        """List the tools again."""
        await self.listing.read((await self.ready()).connection, self.limit_s)

    async def close(self) -> None:
        """End the process."""
        if self._pinging is not None:
            self._pinging.cancel()
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
                    started = await self._server.ready()
            except TimeoutError:
                raise not_sent(self._server.name, TimeoutError("the server's process is not ready")) from None
            self._check()
            left_s = max(end - loop.time(), 0.001)
            watch = self._server.watch(started, left_s)
            try:
                result = await started.connection.call(
                    tool, arguments, timeout_s=left_s, episode=self._episode, tell=self._keeps_state
                )
            except LinkLostError as error:
                if error.sent:
                    raise DeliveryUnknownError(str(error)) from error
                lost = error
            else:
                self._server.note_answer()
                return result
            finally:
                watch.cancel()
        raise not_sent(self._server.name, lost)

    def _check(self) -> None:
        """Raise `EnvironmentLostError` if what the server kept for the episode ended with an earlier process."""
        if not self._generation:
            self._generation = self._server.generation
        elif self._keeps_state and self._generation != self._server.generation:
            name = self._server.name
            raise EnvironmentLostError(f"{name}: the server's process ended, and a new one was started", server=name)

    async def close(self) -> None:
        """Do nothing: the process stays."""
