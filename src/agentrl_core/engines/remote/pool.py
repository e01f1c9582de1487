"""Servers of one engine that share the calls: what they serve together, and a server for each call."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from agentrl_core.engines.remote.server import Condition
from agentrl_core.errors import EngineError

if TYPE_CHECKING:
    from agentrl_core.api.remote import Served, ServerProtocol
    from agentrl_core.engines.remote.calls import RemoteCall
    from agentrl_core.engines.remote.server import RemoteServer
    from agentrl_core.types import GenerateRequest

_MOST_KEPT = 4096
"""Groups or sessions whose server is remembered; the least recently used ones are forgotten."""


class ServerPool:
    """Servers of one kind with the same model. Everything that changes here is guarded by the engine's lock."""

    def __init__(self, protocol: ServerProtocol) -> None:
        self._protocol = protocol
        self.servers: tuple[RemoteServer, ...] = ()
        self._chosen: OrderedDict[str, RemoteServer] = OrderedDict()
        self.model: str | None = None
        """Name of the model that all servers serve; known once the engine has started."""
        self.context_length: int | None = None
        """Smallest context length that a server states."""
        self.takes_weights = False
        """Whether all servers can load new weights."""
        self.notice = ""
        """Message to the user about the servers; empty if there is nothing to say."""

    def add(self, server: RemoteServer) -> None:
        """Add a server, which gets no calls yet."""
        self.servers = (*self.servers, server)

    def remove(self, server: RemoteServer) -> None:
        """Take a server out; calls that are placed there are placed again before their next attempt."""
        self.servers = tuple(other for other in self.servers if other is not server)

    def note(self, described: Mapping[str, Served]) -> None:
        """Record what the servers serve by their addresses, while the engine starts; raise unless it is the same."""
        names = dict.fromkeys(served.model for served in described.values())
        if len(names) > 1:
            raise EngineError(f"engine.url: the servers serve different models: {', '.join(names)}; set engine.model")
        (self.model,) = names
        lengths = [served.context_length for served in described.values() if served.context_length is not None]
        self.context_length = min(lengths, default=None)
        self.takes_weights = all(served.takes_weights for served in described.values())
        self.notice = "; ".join(f"{url}: {served.notice}" for url, served in described.items() if served.notice)

    def judge(self, url: str, served: Served) -> None:
        """Raise `EngineError` if a server that joins does not serve what the others do."""
        length = served.context_length
        if self.context_length is not None and length is not None and length < self.context_length:
            raise EngineError(
                f"{url}: the server has a context of {length} tokens, the others have {self.context_length}; start it "
                "with the same context length"
            )
        if self.takes_weights and not served.takes_weights:
            raise EngineError(f"{url}: the server takes no weights, but the others do: {served.notice}")

    def unservable(self, request: GenerateRequest) -> str | None:
        """Return why one of the servers would return other logprobs than the embedded engine; None if none would."""
        sampling = request.sampling
        constrained = sampling.grammar is not None or sampling.min_tokens > 0
        # Sampling masks say what the constraint left, and logprobs come renormalised over them, in the first call.
        constrained = constrained and not (request.return_kept and sampling.truncates)
        rule = "min_tokens" if sampling.grammar is None else "a grammar"
        if request.images:
            return "images are not sent to model servers; leave them out"
        if constrained and sampling.temperature not in {0.0, 1.0}:
            # Constrained outputs get their logprobs from a second call at temperature 1; those of temperature 0 are
            # equal.
            return f"{rule} needs temperature 0 or 1 here, not {sampling.temperature}"
        if constrained and request.top_logprobs:
            return f"top_logprobs would cover only the tokens that {rule} allows; leave one of the two out"
        described = [server.served for server in self.servers if server.served is not None]
        return next(filter(None, (self._protocol.unservable(request, served) for served in described)), None)

    def place(self, call: RemoteCall) -> RemoteServer | None:
        """Note and return the server for a call; None if none is in service. The call may have to wait for it."""
        server = self._choose(call)
        if server is not call.server:
            self.release(call)
            if server is not None:
                server.num_placed += 1
                call.server = server
        return server

    def release(self, call: RemoteCall) -> None:
        """Note that a call is on no server any more."""
        if call.server is not None:
            call.server.num_placed -= 1
            call.server = None

    def _choose(self, call: RemoteCall) -> RemoteServer | None:
        """Return the server of the request's group, or of its session; a new one goes to the least busy server.

        Servers that fail get no calls while others are up. If all of them fail, the one that was up last is chosen.
        """
        if len(self.servers) == 1:
            (only,) = self.servers
            return None if only.condition is Condition.OUT else only
        candidates = [server for server in self.servers if server.condition is not Condition.OUT]
        if not candidates:
            return None
        candidates = self._fit(candidates, call)
        # The members of a group share their prompt, so the group counts more than the session.
        request = call.request
        key = request.group or request.session or request.request_id
        server = self._chosen.get(key)
        if server is None or server not in candidates:
            # A server that loads weights is waited for only by the groups that it has.
            ready = [server for server in candidates if server.condition is Condition.READY]
            chosen = min(ready or candidates, key=lambda server: (server.num_placed, server.num_kept))
            self._keep(key, server, chosen)
            return chosen
        self._chosen.move_to_end(key)
        return server

    def _fit(self, candidates: list[RemoteServer], call: RemoteCall) -> list[RemoteServer]:
        """Leave out servers that fail, and those with older weights than the call has tokens of, if others remain."""
        if call.versions:
            # Those that are updating get the new weights before the call does.
            newest = call.versions[-1]
            able = [
                server for server in candidates if server.version >= newest or server.condition is Condition.UPDATING
            ]
            candidates = able or candidates
        rested = [server for server in candidates if server.absence.rested]
        return rested or [max(candidates, key=lambda server: server.absence.since)]

    def _keep(self, key: str, before: RemoteServer | None, server: RemoteServer) -> None:
        """Remember the server of a group or session."""
        if before is not None:
            before.num_kept -= 1
        server.num_kept += 1
        self._chosen[key] = server
        self._chosen.move_to_end(key)
        if len(self._chosen) > _MOST_KEPT:
            _, forgotten = self._chosen.popitem(last=False)
            forgotten.num_kept -= 1

    def has_other_up(self, server: RemoteServer) -> bool:
        """Return whether a server besides `server` is not known to be away."""
        return any(other is not server and math.isinf(other.absence.since) for other in self.servers)
