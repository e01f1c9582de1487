"""Limits of one client's connection: sizes and times after which the server refuses or drops it."""

from __future__ import annotations

import sys

import attrs

from agentrl_core.gateway.serving.web import MAX_BODY_BYTES

_MOST_CONNECTIONS = 4096


def most_connections() -> int:
    """Return how many connections the process may hold; half of its file handles stay free for everything else."""
    if sys.platform == "win32":
        return _MOST_CONNECTIONS
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else min(_MOST_CONNECTIONS, soft // 2)


@attrs.frozen(kw_only=True)
class Limits:
    """Limits of one connection, except `connections` and `surplus`, which are the server's."""

    connections: int = attrs.field(factory=most_connections)
    """Number of open connections; a further one replaces the one whose client has sent no whole request for longest, or
    gets 503 if all are being answered."""
    surplus: int = 128
    """Number of connections beyond `connections` that get a 503; still further ones are dropped without a response."""
    url_bytes: int = 8192
    head_bytes: int = 65_536
    """Size of the request line and all headers."""
    headers: int = 128
    """Number of headers of a request."""
    wire_bytes: int = 2 * MAX_BODY_BYTES
    """Size of one request as sent; larger than its body, which may come in tiny chunks with a header each."""
    pipelined: int = 16
    """Number of requests that may wait behind the one that is being answered."""
    request_s: float = 60.0
    """Time from the first byte of a request to its last."""
    unread_s: float = 60.0
    """Time in which a client must read some 50 KB of its response."""
    idle_s: float = 75.0
    """Time between requests. Clients close idle connections earlier (httpx after 5 s, aiohttp after 15 s), so that no
    request meets a connection that the server is closing."""
    linger_s: float = 2.0
    """Time for which a refused client's data is still read, so that it receives the refusal."""

    @property
    def shortest_s(self) -> float:
        """Shortest of the time limits: no client can be late before it."""
        return min(self.request_s, self.unread_s, self.idle_s)
