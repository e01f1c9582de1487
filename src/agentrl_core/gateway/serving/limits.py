"""How much time, room and patience one client gets from the server."""

from __future__ import annotations

import sys

import attrs

from agentrl_core.gateway.serving.web import MAX_BODY_BYTES

_MOST_CONNECTIONS = 4096


def most_connections() -> int:
    """Return how many connections the process can hold; half of its file handles are left to everything else."""
    if sys.platform == "win32":
        return _MOST_CONNECTIONS
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else min(_MOST_CONNECTIONS, soft // 2)


@attrs.frozen(kw_only=True)
class Limits:
    """Of one connection, but for `connections`."""

    connections: int = attrs.field(factory=most_connections)
    """Beyond it a newcomer takes the place of the one that has been idle longest, or is told to come again."""
    surplus: int = 128
    """Connections beyond `connections` that are told so; even later ones are dropped without a word."""
    url_bytes: int = 8192
    head_bytes: int = 65_536
    """Of the request line and all headers."""
    headers: int = 128
    wire_bytes: int = 2 * MAX_BODY_BYTES
    """Of one request with what frames its body: a body may be in chunks, which may be tiny."""
    pipelined: int = 16
    """Requests that may wait behind the one that is answered."""
    request_s: float = 60.0
    """From the first byte of a request to its last."""
    unread_s: float = 60.0
    """How long a client may take to read some 50 KB of what it was sent."""
    idle_s: float = 75.0
    """Between requests; clients give up earlier (httpx after 5 s, aiohttp 15 s), so that no request meets a closing
    connection."""
    linger_s: float = 2.0
    """How long a client that was turned away may still send, so that it reads why."""

    @property
    def shortest_s(self) -> float:
        """The least time in which a client can be late."""
        return min(self.request_s, self.unread_s, self.idle_s)
