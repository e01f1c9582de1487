"""Servers of one engine as a whole: what they serve together, commands to all of them, and a server for each call."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_core.engines.remote.state import EngineState, label_of
from agentrl_core.errors import EngineError

if TYPE_CHECKING:
    from agentrl_core.api.publishers import WeightPublisher
    from agentrl_core.api.remote import ServerProtocol
    from agentrl_core.engines.remote.server import RemoteServer
    from agentrl_core.types import GenerateRequest

log = logging.getLogger(__name__)

_MOST_KEPT = 4096
"""Groups or sessions whose server is remembered; the least recently used ones are forgotten."""


class ServerPool:
    """Servers of one kind with the same model."""

    def __init__(self, protocol: ServerProtocol, servers: Sequence[RemoteServer]) -> None:
        self._protocol = protocol
        self._servers = tuple(servers)
        self._chosen: OrderedDict[str, RemoteServer] = OrderedDict()
        self.context_length: int | None = None
        """Smallest context length that a server states."""
        self.takes_weights = False
        """Whether all servers can load new weights."""
        self.notice = ""
        """Message to the user about the servers; empty if there is nothing to say."""

    async def start(self, model: str | None, model_dir: Path | None, state: EngineState) -> None:
        """Ask each server what it serves; have it load the policy's weights if it has others."""
        for server in self._servers:
            server.served = await server.control.describe(model)
            if server.served.takes_weights:
                state.name_initial(await _begin_weights(server, model_dir))
        described = [server.served for server in self._servers if server.served is not None]
        names = dict.fromkeys(served.model for served in described)
        if len(names) > 1:
            raise EngineError(f"engine.url: the servers serve different models: {', '.join(names)}; set engine.model")
        lengths = [served.context_length for served in described if served.context_length is not None]
        self.context_length = min(lengths, default=None)
        self.takes_weights = all(served.takes_weights for served in described)
        self.notice = "; ".join(
            f"{server.url}: {server.served.notice}"
            for server in self._servers
            if server.served is not None and server.served.notice
        )

    def unservable(self, request: GenerateRequest) -> str | None:
        """Return why one of the servers would return other logprobs than the embedded engine; None if none would."""
        sampling = request.sampling
        constrained = sampling.grammar is not None or sampling.min_tokens > 0
        rule = "min_tokens" if sampling.grammar is None else "a grammar"
        if request.images:
            return "images are not sent to model servers; leave them out"
        if constrained and sampling.temperature not in {0.0, 1.0}:
            # Constrained outputs get their logprobs from a second call at temperature 1; those of temperature 0 are
            # equal.
            return f"{rule} needs temperature 0 or 1 here, not {sampling.temperature}"
        if constrained and request.top_logprobs:
            return f"top_logprobs would cover only the tokens that {rule} allows; leave one of the two out"
        described = [server.served for server in self._servers if server.served is not None]
        return next(filter(None, (self._protocol.unservable(request, served) for served in described)), None)

    def choose(self, request: GenerateRequest) -> RemoteServer:
        """Return the server of the request's group, or of its session; a new one goes to the least busy server.

        Servers that are away get no calls while others are up. If all are away, the one that was up last is chosen.
        Called under the engine's lock.
        """
        if len(self._servers) == 1:
            return self._servers[0]
        # The members of a group share their prompt, so the group counts more than the session.
        key = request.group or request.session or request.request_id
        present = [server for server in self._servers if server.absence.rested]
        present = present or [max(self._servers, key=lambda server: server.absence.since)]
        server = self._chosen.get(key)
        if server is None or server not in present:
            kept = list(self._chosen.values())
            server = min(present, key=lambda server: (server.num_running, kept.count(server)))
        self._chosen[key] = server
        self._chosen.move_to_end(key)
        if len(self._chosen) > _MOST_KEPT:
            self._chosen.popitem(last=False)
        return server

    def has_other_up(self, server: RemoteServer) -> bool:
        """Return whether a server besides `server` is not known to be away."""
        return any(other is not server and math.isinf(other.absence.since) for other in self._servers)

    async def pause(self) -> None:
        """Pause all servers, if they take weights; otherwise nothing needs them to hold still."""
        if self.takes_weights:
            try:
                await self._on_all(lambda server: server.control.pause())
            except EngineError:
                # Those that did pause would hang up every call until its timeout.
                await self._try_resume()
                raise

    async def _try_resume(self) -> None:
        """Resume the servers that answer now; log those that do not."""

        async def resume(server: RemoteServer) -> None:
            try:
                await server.control.try_resume()
            except EngineError as error:
                log.warning("%s: not resumed after a failed pause: %s", server.url, error)

        await self._on_all(resume)

    async def resume(self) -> None:
        """Let all servers sample again."""
        if self.takes_weights:
            await self._on_all(lambda server: server.control.resume())

    async def load_weights(self, directory: Path, version: int) -> None:
        """Have all servers, which are paused, read new weights; one that is away is waited for."""
        await self._on_all(lambda server: server.control.load(directory, label_of(version)))
        for server in self._servers:
            server.absence.end()

    async def deliver_weights(self, publisher: WeightPublisher, version: int) -> None:
        """Have a publisher give new weights to all servers, which are paused."""
        await publisher.deliver(version, label_of(version), [server.control for server in self._servers])
        for server in self._servers:
            server.absence.end()

    def close(self) -> None:
        """End all connections."""
        for server in self._servers:
            server.close()

    async def _on_all(self, command: Callable[[RemoteServer], Coroutine[Any, Any, None]]) -> None:
        """Send a command to all servers at once; raise the first failure after all have answered or failed."""
        results = await asyncio.gather(*map(command, self._servers), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result


async def _begin_weights(server: RemoteServer, model_dir: Path | None) -> str | None:
    """Make sure that a server samples from the policy's first weights; return its name for them."""
    served = server.served
    assert served is not None  # noqa: S101 (the caller's condition)
    # Servers call the weights that they were started with `default`.
    is_initial = served.label in {None, "default"} and served.model_path == str(model_dir)
    if model_dir is None or is_initial:
        # A run that ended early, during its first publication, leaves it paused with the same weights.
        await server.control.resume()
        return served.label
    await server.control.load_at_start(model_dir, label_of(0))
    return label_of(0)
