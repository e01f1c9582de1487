"""Serve the gateway's routes over HTTP, on a thread and an event loop of its own."""

from __future__ import annotations

import errno
import functools
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

import attrs
import uvicorn

from agentrl_core.errors import RunError
from agentrl_core.gateway.serving.connection import CONNECTION, Connection
from agentrl_core.gateway.serving.limits import Limits
from agentrl_core.gateway.serving.routes import too_large
from agentrl_core.gateway.serving.web import MAX_BODY_BYTES, HttpRequest, HttpResponse

if TYPE_CHECKING:
    from agentrl_core.gateway.serving.connection import Message, Receive, Scope, Send

_GRACE_S = 2
"""How long running replies may take when the server closes."""

_LOOPBACK = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})
_PROXY_HEADERS = frozenset({"forwarded", "x-forwarded-for", "x-real-ip"})
"""What tells that a proxy on this machine speaks for someone who may be on another."""

Handle = Callable[[HttpRequest], Awaitable[HttpResponse]]
RefuseEarly = Callable[[HttpRequest], HttpResponse | None]
"""Answers, of a request without its body, what needs no body to be refused."""


class GatewayServer:
    """uvicorn on its own thread."""

    def __init__(
        self, handle: Handle, refuse_early: RefuseEarly, *, host: str, port: int, limits: Limits | None = None
    ) -> None:
        self._socket = bind(host, port)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            _Endpoint(handle, refuse_early),
            loop="auto" if sys.platform == "win32" else "uvloop",
            http=functools.partial(Connection, limits=limits or Limits()),  # type: ignore[arg-type]  # it is only called
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,  # paths carry the sessions' tokens
            server_header=False,
            proxy_headers=False,  # whoever is behind a proxy is not on this machine: `_request` sees to it
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = _NotifyingServer(config)
        self._thread = threading.Thread(target=self._serve, name="agentrl-gateway", daemon=True)

    def start(self) -> None:
        """Return when requests are accepted."""
        self._thread.start()
        self._server.ready.wait()
        if not self._server.started:
            raise RunError("gateway: the HTTP server did not start; its error is above")

    def close(self) -> None:
        """Stop accepting, let running replies end for a moment, and join the thread; idempotent."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._server.ready.set()


class _NotifyingServer(uvicorn.Server):
    """Says when it has started, so that nobody has to poll."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


class _Endpoint:
    """The ASGI side of `Handle`."""

    def __init__(self, handle: Handle, refuse_early: RefuseEarly) -> None:
        self._handle = handle
        self._refuse_early = refuse_early

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a client that disconnects cancels it. Strangers' bodies are not read."""
        connection: Connection = scope[CONNECTION]
        if not connection.has_whole_body:
            refusal = self._refuse_early(_request(scope, b""))
            if refusal is None and connection.announced_bytes > MAX_BODY_BYTES:
                refusal = too_large(scope["path"])
            if refusal is not None:
                connection.refuse(refusal)
                return
        body = await _read_body(receive)
        if body is None:
            connection.refuse(too_large(scope["path"]))
            return
        with connection.answering() as gone:
            if not gone:
                response = await self._handle(_request(scope, body))
                if scope["http_version"] != "1.1" and not isinstance(response.body, bytes):
                    response = await _gathered(response)
                await _send(response, send)


def _request(scope: Scope, body: bytes) -> HttpRequest:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    peer = scope["client"]
    local = peer is not None and peer[0] in _LOOPBACK and _PROXY_HEADERS.isdisjoint(headers)
    return HttpRequest(method=scope["method"], path=scope["path"], headers=headers, body=body, local=local)


async def _read_body(receive: Receive) -> bytes | None:
    """Read the whole body; None where it is too large, empty where the client left."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > MAX_BODY_BYTES:
            return None
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


async def _gathered(response: HttpResponse) -> HttpResponse:
    """Make one piece of a stream: HTTP/1.0 has no chunks."""
    if isinstance(response.body, bytes):
        return response
    async with aclosing(response.body) as pieces:
        return attrs.evolve(response, body=b"".join([piece async for piece in pieces]))


async def _send(response: HttpResponse, send: Send) -> None:
    headers = [(name.encode(), value.encode()) for name, value in response.headers]
    if isinstance(response.body, bytes):
        headers.append((b"content-length", str(len(response.body)).encode()))
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})
        return
    async with aclosing(response.body) as pieces:
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def bind(host: str, port: int) -> socket.socket:
    """Open the socket to listen at; 0 takes any free port. Raises `RunError` where that cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    if sys.platform != "win32":  # there it would let two servers share the port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be opened ({error.strerror})"
        raise RunError(
            f"gateway: port {port} on {host} {reason}; choose another gateway.port, or 0 for any free one"
        ) from error
    return listener
