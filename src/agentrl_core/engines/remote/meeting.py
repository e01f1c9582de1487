"""Have the servers of a fleet receive weights together, where a publisher sends them instead of writing files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from agentrl_core.engines.remote.failures import AwayError
from agentrl_core.engines.remote.state import label_of
from agentrl_core.errors import EngineError

if TYPE_CHECKING:
    from agentrl_core.api.publishers import WeightPublisher
    from agentrl_core.engines.remote.server import RemoteServer


class Meeting:
    """One delivery, to all servers that are paused for it; lives on the fleet's event loop.

    It begins once all `expected` servers are there, or `wait_s` after the first. A server that comes later cannot have
    these weights any more, because the learner changes them: it is kept out until the next version.
    """

    def __init__(
        self, publisher: WeightPublisher, version: int, expected: Sequence[RemoteServer], *, wait_s: float
    ) -> None:
        self._publisher, self._version, self._expected, self._wait_s = publisher, version, expected, wait_s
        self._present: list[RemoteServer] = []
        self._complete = asyncio.Event()
        self._delivery: asyncio.Task[None] | None = None
        self._begun = False

    async def load(self, server: RemoteServer) -> None:
        """Return once the server, which is paused, has the weights.

        Raises `AwayError` if they were sent before it came, and another `EngineError` if the delivery fails.
        """
        if self._begun:
            raise AwayError(
                f"{server.url}: the weights of version {self._version} were sent without this server; it gets calls "
                "again with those of the next version"
            )
        self._present.append(server)
        if set(self._expected) <= set(self._present):
            self._complete.set()
        if self._delivery is None:
            self._delivery = asyncio.ensure_future(self._deliver())
        try:
            await asyncio.shield(self._delivery)
        except AwayError as error:  # nothing of a delivery can be repeated for one server alone
            raise EngineError(str(error)) from error

    async def _deliver(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._wait_s):
                await self._complete.wait()
        self._begun = True
        order = [server for server in self._expected if server in self._present]
        order += [server for server in self._present if server not in order]
        await self._publisher.deliver(self._version, label_of(self._version), [server.control for server in order])
