"""Run uvicorn on its own thread and event loop, and pass each HTTP request on to `Router.handle`.

A request's head is checked before its body is read, so unauthorized clients cannot fill the memory.
"""

from __future__ import annotations

import errno
import functools
import ipaddress
import re
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

import attrs
import uvicorn

from agentrl_core.errors import RequestError, RunError
from agentrl_core.gateway.serving.body_memory import BodyRoom, RoomSize
from agentrl_core.gateway.serving.connection import CONNECTION, Connection
from agentrl_core.gateway.serving.limits import Limits
from agentrl_core.gateway.serving.routes import client_of, refused_at, too_large
from agentrl_core.gateway.serving.turns import Turns
from agentrl_core.gateway.serving.uvicorn_internals import check_uvicorn
from agentrl_core.gateway.serving.web import MAX_BODY_BYTES, HttpRequest, HttpResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.gateway.serving.connection import Message, Receive, Scope, Send

_GRACE_S = 2
"""Time for running replies to end when the server closes."""

_PROXY_HEADER = re.compile(
    r"via|forwarded|x-forwarded\b.*|x-original-.*|x-real-ip|(x-|true-|fastly-|fly-)?(cluster-)?client-ip|cdn-loop|cf-.*"
    r"|x-envoy-.*|x-amz(n|-cf)-.*|x-azure-.*|x-appengine-.*|x-cloud-trace-context|x-remote-(addr|ip)|x-proxy.*|ngrok-.*"
    r"|tailscale-.*|x-arr-.*"
)
"""Names of headers that proxies add: the request may then come from another machine, through a proxy on this one."""
_HOST = re.compile(r"(?:\[(?P<address>[^\]]*)\]|(?P<name>[^:]*))(?::\d*)?")
"""Pattern of a Host header: an IPv6 address in brackets, or a name or IPv4 address; then perhaps a port."""

Handle = Callable[[HttpRequest], Awaitable[HttpResponse]]
RefuseEarly = Callable[[HttpRequest], HttpResponse | None]
"""Function that returns the refusal of a request whose head alone rules it out, else None."""


class GatewayServer:
    """HTTP server of a gateway: uvicorn on its own thread; the port is bound at construction.

    `RunError` if the port cannot be opened.
    """

    def __init__(
        self,
        handle: Handle,
        refuse_early: RefuseEarly,
        *,
        host: str,
        port: int,
        limits: Limits | None = None,
        room: RoomSize | None = None,
    ) -> None:
        check_uvicorn()
        self._socket = bind(host, port)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            _Endpoint(handle, refuse_early, BodyRoom(room or RoomSize())),
            loop="auto" if sys.platform == "win32" else "uvloop",
            http=functools.partial(Connection, limits=limits or Limits(), awaited={}),  # type: ignore[arg-type]  # it is only called
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,  # the log would have the sessions' tokens, which are in the paths
            server_header=False,
            proxy_headers=False,  # uvicorn would replace the peer's address, which `_is_local` needs
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = _NotifyingServer(config)
        self._thread = threading.Thread(target=self._serve, name="agentrl-gateway", daemon=True)

    def start(self) -> None:
        """Start the thread and return when requests are accepted; `RunError` if the server does not start."""
        self._thread.start()
        self._server.ready.wait()
        if not self._server.started:
            raise RunError("gateway: the HTTP server did not start; see its error above")

    def close(self) -> None:
        """Stop accepting, give running replies a short time to end, and join the thread; idempotent, blocks."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        # Set also after a failure to start, or `start` would wait for ever.
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._server.ready.set()


class _NotifyingServer(uvicorn.Server):
    """uvicorn's server with an event that is set when it has started, or has failed to."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


class _Endpoint:
    """ASGI application that converts between ASGI messages and the gateway's requests and responses."""

    def __init__(self, handle: Handle, refuse_early: RefuseEarly, room: BodyRoom) -> None:
        self._handle = handle
        self._refuse_early = refuse_early
        self._room = room
        self._turns = Turns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a disconnect of its client cancels it. Bodies of unauthorized clients are not read."""
        connection: Connection = scope[CONNECTION]
        request = _request(scope)
        try:
            # A body that is here already is small enough to hold; `Router.handle` checks that request itself.
            if not connection.has_whole_body:
                request.on_body_taken = await self._admit(request, connection)
            try:
                request.body = await _read_body(receive, request.path)
                await self._answer(request, connection, scope, send)
            finally:
                request.on_body_taken()
        except _RefusedError as refused:
            connection.refuse(refused.response)

    async def _admit(self, request: HttpRequest, connection: Connection) -> Callable[[], None]:
        """Wait until a body may be read, and return the function that frees its room in memory.

        `_RefusedError` if the client is not authorized, or the body is too large or finds no room.
        """
        if (refusal := self._refuse_early(request)) is not None:
            raise _RefusedError(refusal)
        announced = connection.announced_bytes
        if announced is not None and announced > MAX_BODY_BYTES:
            raise _RefusedError(too_large(request.path))
        client = client_of(request.path, request.headers)
        try:
            return await self._room.take(client, MAX_BODY_BYTES if announced is None else announced)
        except RequestError as error:
            raise _RefusedError(refused_at(request.path, error)) from error

    async def _answer(self, request: HttpRequest, connection: Connection, scope: Scope, send: Send) -> None:
        with connection.answering() as gone:
            if not gone:
                # LLM calls have a body; pages without one, such as /health, must not queue behind them.
                if request.body:
                    await self._turns.take()
                response = await self._handle(request)
                if scope["http_version"] != "1.1" and not isinstance(response.body, bytes):
                    response = await _gathered(response)
                await _send(response, send)


class _RefusedError(Exception):
    """Request that is refused without reading its body; the connection closes after the response."""

    def __init__(self, response: HttpResponse) -> None:
        super().__init__(response.status)
        self.response = response


def _request(scope: Scope) -> HttpRequest:
    """Build a request from an ASGI scope; its body is read later."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    local = _is_local(scope["client"], headers)
    query = scope["query_string"].decode("latin-1")
    return HttpRequest(method=scope["method"], path=scope["path"], query=query, headers=headers, body=b"", local=local)


def _is_local(peer: tuple[str, int] | None, headers: Mapping[str, str]) -> bool:
    """Return whether a request comes from this machine and not through a proxy, as far as its head shows.

    A proxy on this machine is recognised by the headers that it adds, or by a Host that is not this machine's. A proxy
    that adds no headers and sets the Host itself looks like a local agent; `gateway.url_tokens` is for that case.
    """
    if peer is None or not _is_own(peer[0]) or any(map(_is_proxys, headers)):
        return False
    # HTTP/1.0 clients may send no Host; their address, which was checked, then decides.
    host = _HOST.fullmatch(headers.get("host", "localhost"))
    return host is not None and _is_own(host["address"] or host["name"])


@functools.lru_cache(1024)
def _is_proxys(header: str) -> bool:
    return _PROXY_HEADER.fullmatch(header) is not None


@functools.lru_cache(1024)
def _is_own(host: str) -> bool:
    """Return whether a name or an address denotes the local machine: localhost, loopback or the unspecified address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    # A dual-stack socket reports IPv4 peers as mapped addresses such as ::ffff:127.0.0.1.
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


async def _read_body(receive: Receive, path: str) -> bytes:
    """Read the whole body; empty if the client disconnected. `_RefusedError` if it is too large."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        # Counted even if a Content-Length was checked: a body in chunks announces none.
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > MAX_BODY_BYTES:
            raise _RefusedError(too_large(path))
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


async def _gathered(response: HttpResponse) -> HttpResponse:
    """Collect a stream into one body, for HTTP/1.0, which has no chunked encoding."""
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
    # A client that disconnects cancels this task; `aclosing` then aborts the generation behind the stream.
    async with aclosing(response.body) as pieces:
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def bind(host: str, port: int) -> socket.socket:
    """Open the socket that the server listens on; port 0 takes any free port. `RunError` if it cannot be opened."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    # On Windows this option would let two servers share the port.
    if sys.platform != "win32":
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
