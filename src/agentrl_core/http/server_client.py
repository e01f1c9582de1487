"""HTTP client for servers that answer for a long time: model servers, providers, LLM judges; built on aiohttp.

Pools connections, uses proxies, retries failed connections, and limits silence and reply size. It does not follow
redirects, keep cookies or decompress: a reply that is compressed although no compression was accepted is returned as it
is.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import math
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias
from urllib.parse import urlsplit

from agentrl_core.errors import ConfigError
from agentrl_core.http.backoff import Backoff, RetryPolicy, TransientError
from agentrl_core.http.direct import DirectConnections, DirectError, DirectReply
from agentrl_core.http.proxies import Proxy, proxy_of
from agentrl_core.http.tls_context import ssl_context

if TYPE_CHECKING:
    import ssl

    import aiohttp

Fault: TypeAlias = Literal["connect", "silent", "broken", "garbled", "too large"]
"""`connect`: no connection was made. `silent`: nothing arrived for too long. `broken`: the connection ended early.
`garbled`: the reply was not HTTP. `too large`: the reply exceeds the caller's limit."""

MOST_BYTES = 16 << 20
"""Default limit for a reply, or for one event of a stream: a million tokens are about 4 MB."""

_BACKOFF = Backoff(first_s=0.2)
"""Waits before a request is sent again."""
_KEPT_S = 4.0
"""Lifetime of an idle connection: below the 5 s after which uvicorn, on which most model servers run, closes it."""
_MOST_AT_ONCE_BYTES = 1 << 20
"""Larger bodies are sent in parts, because aiohttp warns about large bodies in one piece."""
_MOST_SHOWN_CHARS = 300
"""Characters of aiohttp's message that ours quotes."""


class ExchangeError(Exception):
    """A request got no complete reply; the message names the server, never a header, which may hold a key."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class ServerClient:
    """Sends requests to one server from any number of event loops, with separate connections for each.

    `headers` are sent with every request. `max_connections` counts per event loop. If the connection fails before any
    part of the reply has come, a request is sent again, up to `retries` times. Connections close with their event loop
    (as `asyncio.run` ends it) or by `close`.

    Without `resends` a request is sent once, for requests that do harm if they arrive twice: not even again at once
    when the server seems to have closed a kept connection, because it may have read the request before.

    `direct`: use lean connections of our own (`http.direct`) where neither TLS nor a proxy is needed.

    `proxy` is the address of an HTTP proxy, or `direct` for none; without it the environment decides (`proxy_of`).
    Raises `ConfigError` if the proxy, or the environment's CA certificates, cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        ssl_context: Callable[[], ssl.SSLContext] = ssl_context,
        proxy: str | None = None,
        headers: Callable[[], Mapping[str, str]] = dict,
        max_connections: int = 256,
        connect_timeout_s: float = 10.0,
        silence_s: float = 600.0,
        retries: int = 2,
        resends: bool = True,
        direct: bool = False,
    ) -> None:
        import aiohttp  # noqa: F401 (no event loop should wait for this import)

        parts = urlsplit(url.rstrip("/"))
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"url: expected http(s)://host[:port][/path], found {url!r}")
        if parts.username or parts.password:
            raise ValueError("url: must not contain a user name or password; name a variable in api_key_env instead")
        self.url = url.rstrip("/")
        try:
            self._proxy = proxy_of(self.url, proxy)
        except ValueError as error:
            raise ConfigError(f"{self.url}: no way to reach it: {error}") from error
        self._headers = headers
        self._is_secure = parts.scheme == "https"
        self._address = (parts.hostname, parts.port or 80)
        self._prefix = parts.path
        self._is_direct = direct and not self._is_secure and self._proxy is None
        via_secure_proxy = self._proxy is not None and self._proxy.url.startswith("https:")
        self._ssl_context = ssl_context() if self._is_secure or via_secure_proxy else None
        self._max_connections = max_connections
        self._connect_timeout_s = connect_timeout_s
        self._silence_s = silence_s
        self._retries = RetryPolicy(max_retries=retries if resends else 0, backoff=_BACKOFF)
        self._resends = resends
        self._lock = threading.Lock()
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        silence_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ServerReply:
        """Return a reply whose status and headers have come; leaving its `with` early ends the connection.

        `headers` are sent with this request only, in place of the client's own of the same names.
        """
        import aiohttp

        silence_s = self._silence_s if silence_s is None else silence_s
        fields = {"Accept": "application/json, text/event-stream", "Accept-Encoding": "identity", **self._headers()}
        fields |= headers or {}
        if body:
            fields["Content-Type"] = "application/json"
        to_proxy = {} if self._proxy is None else self._proxy.headers
        # Without a tunnel the proxy reads, and removes, its own headers from the request.
        if not self._is_secure:
            fields |= to_proxy
        pool = await self._pool()
        await pool.limit.acquire()
        try:
            if self._is_direct:
                found = await self._direct_head(pool, method, path, fields, body, silence_s)
                return ServerReply(self.url, self._proxy, pool, silence_s, found)
            send = functools.partial(
                pool.session.request,
                method,
                self.url + path,
                headers=fields,
                timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_timeout_s, sock_read=silence_s),
                allow_redirects=False,
                proxy=None if self._proxy is None else self._proxy.url,
                proxy_headers=to_proxy if self._is_secure else None,
            )
            return ServerReply(self.url, self._proxy, pool, silence_s, await self._head(pool, send, body, silence_s))
        except BaseException:
            pool.limit.release()
            raise

    async def _direct_head(
        self, pool: _Pool, method: str, path: str, fields: Mapping[str, str], body: bytes, silence_s: float
    ) -> DirectReply:
        """Do the same as `_head`, without aiohttp."""

        async def attempt() -> DirectReply:
            if pool.session.closed:
                raise ExchangeError("broken", f"{self.url}: the connections were closed")
            try:
                return await pool.direct(self._address).send(
                    method,
                    self._prefix + path,
                    fields,
                    body,
                    connect_timeout_s=self._connect_timeout_s,
                    silence_s=silence_s,
                )
            except DirectError as error:
                failure = _told_direct(self.url, silence_s, error)
                if failure.fault not in {"connect", "broken"} or error.begun:
                    raise failure from error
                raise TransientError(failure, at_once=error.kept and self._resends) from error

        return await self._retries.call(attempt)

    async def _head(
        self, pool: _Pool, send: Callable[..., Any], body: bytes, silence_s: float
    ) -> aiohttp.ClientResponse:
        """Send a request until the head of a reply comes, or the failure is not worth another attempt."""
        import aiohttp

        async def attempt() -> aiohttp.ClientResponse:
            if pool.session.closed:
                raise ExchangeError("broken", f"{self.url}: the connections were closed")
            connection = SimpleNamespace(kept=False)
            data = io.BytesIO(body) if len(body) > _MOST_AT_ONCE_BYTES else body or None
            try:
                # `sock_read` alone would let a server take as long as it likes to read the request.
                async with asyncio.timeout(self._connect_timeout_s + silence_s):
                    response: aiohttp.ClientResponse = await send(data=data, trace_request_ctx=connection)
                    return response
            except (aiohttp.ClientError, TimeoutError) as error:
                failure = _told(self.url, self._proxy, silence_s, error)
                # If part of the head came, a ServerDisconnectedError has that as `message` instead of a text. The
                # server has begun to answer, so the request must not be sent again.
                begun = not isinstance(getattr(error, "message", ""), str)
                if failure.fault not in {"connect", "broken"} or begun:
                    raise failure from error
                # The server may close a kept connection at any time. That is not a failure: try again at once.
                raise TransientError(failure, at_once=connection.kept and self._resends) from error

        return await self._retries.call(attempt)

    def close(self) -> None:
        """End all connections, on whichever event loop they are."""
        with self._lock:
            pools, self._pools = self._pools, {}
        for loop, pool in pools.items():
            try:
                loop.call_soon_threadsafe(pool.begin_closing)
            except RuntimeError:
                # The loop is closed already.
                pool.forget()

    async def _pool(self) -> _Pool:
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop in self._pools:
                return self._pools[loop]
            for ended in [other for other in self._pools if other.is_closed()]:
                self._pools.pop(ended).forget()
            pool = self._pools[loop] = _Pool(self._max_connections, self._ssl_context)
        # An event loop closes only those async generators that were started on it.
        await anext(pool.keeper)
        return pool


class ServerReply:
    """Reply whose body may still be arriving.

    An iterator, not an async generator: if it is left early, nothing remains for the garbage collector to close.
    """

    def __init__(
        self,
        url: str,
        proxy: Proxy | None,
        pool: _Pool,
        silence_s: float,
        response: aiohttp.ClientResponse | DirectReply,
    ) -> None:
        self._url, self._proxy, self._pool = url, proxy, pool
        self._silence_s, self._response = silence_s, response
        self._pieces = response if isinstance(response, DirectReply) else response.content.iter_any()
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        """Case-insensitive."""
        pool.replies.add(self)

    async def read(self, most_bytes: int = MOST_BYTES) -> bytes:
        """Return the rest of the body; `ExchangeError` as soon as it exceeds `most_bytes`."""
        data = await self._up_to(most_bytes + 1)
        if len(data) > most_bytes:
            raise ExchangeError("too large", f"{self._url}: the reply has more than {most_bytes} bytes")
        return data

    async def read_beginning(self, most_bytes: int = 1 << 16) -> bytes:
        """Return the first bytes of the body; enough for the body of an error."""
        return (await self._up_to(most_bytes))[:most_bytes]

    async def _up_to(self, enough_bytes: int) -> bytes:
        if isinstance(self._response, DirectReply) and (rest := self._response.take_rest()) is not None:
            return rest
        body = bytearray()
        async for piece in self:
            body += piece
            if len(body) >= enough_bytes:
                break
        return bytes(body)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        import aiohttp

        try:
            return await anext(self._pieces)
        except DirectError as error:
            raise _told_direct(self._url, self._silence_s, error) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _told(self._url, self._proxy, self._silence_s, error) from error

    def close(self) -> None:
        """Return the connection to the pool if the reply was read to its end, else end it. Idempotent."""
        if self in self._pool.replies:
            self._pool.replies.remove(self)
            # Does nothing if the connection went back to the pool at the end of the body.
            self._response.close()
            self._pool.limit.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Pool:
    """Connections of one event loop."""

    def __init__(self, most: int, context: ssl.SSLContext | None) -> None:
        import aiohttp

        self.limit = asyncio.Semaphore(most)
        self.replies: set[ServerReply] = set()
        self._direct: DirectConnections | None = None
        self.keeper = self._keep()
        """Async generator that is started and never finished. When the event loop ends it closes such generators,
        and with this one the connections."""
        self._closing: asyncio.Task[None] | None = None
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_kept)
        connector = aiohttp.TCPConnector(
            limit=0, ssl=context or True, keepalive_timeout=_KEPT_S, resolver=aiohttp.ThreadedResolver()
        )
        self.session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            trace_configs=[trace],
        )

    def direct(self, address: tuple[str, int]) -> DirectConnections:
        """Return the lean connections to the server."""
        if self._direct is None:
            self._direct = DirectConnections(*address, kept_s=_KEPT_S)
        return self._direct

    async def _keep(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self._close()

    def begin_closing(self) -> None:
        """Start to close on the pool's own event loop; does not wait."""
        self._closing = asyncio.get_running_loop().create_task(self._close())

    def forget(self) -> None:
        """Close after the event loop was closed; nothing is left to wait for."""
        # No loop runs any more: `send` runs the coroutine `close` without one.
        with contextlib.suppress(StopIteration):
            self.session.close().send(None)

    async def _close(self) -> None:
        for reply in tuple(self.replies):
            reply.close()
        if self._direct is not None:
            self._direct.close()
        await self.session.close()


async def _note_kept(_session: object, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx.kept = True


def _told(url: str, proxy: Proxy | None, silence_s: float, error: Exception) -> ExchangeError:
    """Return our error for an exception of aiohttp."""
    import aiohttp

    said = " ".join(str(error).split())[:_MOST_SHOWN_CHARS] or type(error).__name__
    way = "" if proxy is None else f" through the proxy {proxy.url}"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return ExchangeError("connect", f"{url}: no connection{way}: it answered with status {error.status}")
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return ExchangeError("connect", f"{url}: no connection{way}: {said}")
    if isinstance(error, TimeoutError):
        return ExchangeError("silent", f"{url}: nothing arrived for {silence_s:g} s")
    if isinstance(error, aiohttp.ClientResponseError):
        return ExchangeError("garbled", f"{url}: the reply is not HTTP: {said}")
    return ExchangeError("broken", f"{url}: the connection ended before the reply was complete: {said}")


def _told_direct(url: str, silence_s: float, error: DirectError) -> ExchangeError:
    """Return our error for one of a lean connection."""
    said = " ".join(str(error).split())[:_MOST_SHOWN_CHARS]
    messages = {
        "connect": f"{url}: no connection: {said}",
        "silent": f"{url}: nothing arrived for {silence_s:g} s",
        "garbled": f"{url}: the reply is not HTTP: {said}",
        "broken": f"{url}: the connection ended before the reply was complete: {said}",
    }
    return ExchangeError(error.fault, messages[error.fault])


async def server_sent_events(
    pieces: AsyncIterable[bytes],
    *,
    most_event_bytes: int = MOST_BYTES,
    most_bytes: float = math.inf,
    on_field: Callable[[str, str], None] | None = None,
) -> AsyncGenerator[bytes, None]:
    """Yield the data of each event of a `text/event-stream` body.

    `on_field` is told name and value of the other fields that have a value, such as `id` and `retry`.

    Raises `ExchangeError` for an event larger than `most_event_bytes`, and for a stream larger than `most_bytes`.
    """
    # Pieces of the line whose end has not come. Joined once per line, so that a long line takes linear time.
    begun: list[bytes] = []
    data: list[bytes] = []
    begun_bytes = data_bytes = total_bytes = 0
    async for piece in pieces:
        total_bytes += len(piece)
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = b"".join([*begun, lines[0]])
            begun, begun_bytes = [], 0
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
                data_bytes += len(raw)
            elif on_field is not None and (name := line.partition(b":")[0]) in {b"id", b"retry", b"event"}:
                on_field(name.decode(), line[len(name) + 1 :].removeprefix(b" ").decode(errors="replace"))
            elif not line and data:
                yield data[0] if len(data) == 1 else b"\n".join(data)
                data, data_bytes = [], 0
        begun.append(rest)
        begun_bytes += len(rest)
        if begun_bytes + data_bytes > most_event_bytes:
            raise ExchangeError("too large", f"an event of its stream has more than {most_event_bytes} bytes")
        if total_bytes > most_bytes:
            raise ExchangeError("too large", f"its stream has more than {most_bytes:g} bytes")
