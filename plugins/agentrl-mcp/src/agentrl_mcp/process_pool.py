"""Way to a server that is a process of its own in each episode, taken from a pool of processes that are ready."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentrl_core.errors import EnvironmentLostError, ToolServerError
from agentrl_mcp.backend import Facts, Listing, not_sent
from agentrl_mcp.rpc import LinkLostError
from agentrl_mcp.shared_process import Started

if TYPE_CHECKING:
    from agentrl_core.api.tools import ToolEpisode, ToolResult
    from agentrl_mcp.process import Launch

logger = logging.getLogger(__name__)

_MOST_STARTING = 4
"""Processes that start at the same time; more would only make all of them slow."""


class ProcessPool:
    """Processes for episodes, each for one of them; `warm` wait ready for the next ones."""

    def __init__(self, launch: Launch, facts: Facts, *, warm: int) -> None:
        self._launch, self._facts, self._warm = launch, facts, warm
        self.listing = Listing()
        self._ready: deque[Started] = deque()
        self._used: set[Started] = set()
        self._slots = asyncio.Semaphore(_MOST_STARTING)
        self._filling: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start the first process, list the tools, and start the other ones that shall be ready."""
        self._ready.append(await Started.of(self._launch, self._facts, self.listing))
        self.listing = self.listing.copy()
        self._fill()

    async def open(self, episode: ToolEpisode) -> PooledChannel:
        """Return the way to a process that no episode had before."""
        started = self._take()
        if started is None:
            try:
                async with self._slots:
                    # One of the pool may have become ready in the meantime.
                    started = self._take() or await self._start()
            except ToolServerError as error:
                raise not_sent(self._facts.name, error) from error
        self._used.add(started)
        self._fill()
        return PooledChannel(self, started, episode, self._facts.start_timeout_s)

    async def _start(self) -> Started:
        return await Started.of(self._launch, self._facts, self.listing.copy())

    def _take(self) -> Started | None:
        while self._ready:
            started = self._ready.popleft()
            if started.link.is_alive:
                return started
            self._run(started.link.close())
        return None

    def _fill(self) -> None:
        for _ in range(self._warm - len(self._ready) - len(self._filling)):
            self._run(self._add())

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._filling.add(task)
        task.add_done_callback(self._filling.discard)

    async def _add(self) -> None:
        try:
            async with self._slots:
                self._ready.append(await self._start())
        except ToolServerError as error:
            # The next episode tries itself, and says what is wrong.
            logger.warning("%s", error)

    async def give_back(self, started: Started) -> None:
        """End the process of an episode: what it left there must not be seen by another."""
        self._used.discard(started)
        await started.link.close()

    async def close(self) -> None:
        """End all processes."""
        for task in tuple(self._filling):
            task.cancel()
        await asyncio.gather(*self._filling, return_exceptions=True)
        started, self._used = [*self._ready, *self._used], set()
        self._ready.clear()
        await asyncio.gather(*(item.link.close() for item in started))


class PooledChannel:
    """Way of one episode to its own process."""

    def __init__(self, pool: ProcessPool, started: Started, episode: ToolEpisode, limit_s: float) -> None:
        self._pool, self._started, self._episode, self._limit_s = pool, started, episode, limit_s
        self.listing = started.listing

    async def relist(self) -> None:
        """List the tools of the process again."""
        await self.listing.read(self._started.connection, self._limit_s)

    async def call(self, tool: str, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """Call a tool; a process that has ended takes the episode's state with it."""
        connection = self._started.connection
        try:
            return await connection.call(tool, arguments, timeout_s=timeout_s, episode=self._episode, tell=True)
        except LinkLostError as error:
            raise EnvironmentLostError(str(error), server=connection.name) from error

    async def close(self) -> None:
        """End the process."""
        await self._pool.give_back(self._started)
