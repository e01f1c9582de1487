"""The HTTP client for model servers, providers and judges: pooled connections, proxies, limits on silence and size.

No redirects, cookies or compression: what a server packs in spite of being asked not to is handed on as it is.
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
from agentrl_core.http.backoff import Backoff
from agentrl_core.http.proxies import Proxy, proxy_of
from agentrl_core.http.tls_context import ssl_context

if TYPE_CHECKING:
    import ssl

    import aiohttp

Fault: TypeAlias = Literal["connect", "silent", "broken", "garbled", "too large"]
"""No connection came about; nothing was heard for too long; the connection ended early; that was not HTTP; it was
more than the caller takes."""

MOST_BYTES = 16 << 20
"""Of a reply, or of one event of a stream, where the caller sets no other limit: a million tokens are about 4 MB."""

_RETRIES = Backoff(first_s=0.2)
_KEPT_S = 4.0
"""How long an idle connection is kept: uvicorn, on which most model servers run, closes it after 5 s."""
_MOST_AT_ONCE_BYTES = 1 << 20
"""A larger body goes out in parts, as aiohttp asks for."""
_MOST_SHOWN_CHARS = 300


class ExchangeError(Exception):
    """A request got no whole reply; the message names the server, never a header."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class ServerClient:
    """Sends requests to one server from any number of event loops, each with connections of its own.

    `headers` go with every request. `max_connections` counts per event loop. A request is sent anew, up to
    `retries` times, where the connection failed before anything of the reply came. Connections close when their
    event loop ends (as `asyncio.run` ends it) or with `close`.

    `proxy` is the address of an HTTP proxy, or `direct` for none; without it the environment decides (`proxy_of`).
    `ConfigError` where that, or the environment's CA certificates, cannot be used.
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
    ) -> None:
        import aiohttp  # noqa: F401 (no event loop should wait for this import)

        parts = urlsplit(url.rstrip("/"))
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"url: expected http(s)://host[:port][/path], found {url!r}")
        if parts.username or parts.password:
            raise ValueError("url: a user name or password does not belong into it; name a variable in api_key_env")
        self.url = url.rstrip("/")
        try:
            self._proxy = proxy_of(self.url, proxy)
        except ValueError as error:
            raise ConfigError(f"{self.url}: no way to ask it: {error}") from error
        self._headers = headers
        self._is_secure = parts.scheme == "https"
        via_secure_proxy = self._proxy is not None and self._proxy.url.startswith("https:")
        self._ssl_context = ssl_context() if self._is_secure or via_secure_proxy else None
        self._max_connections = max_connections
        self._connect_timeout_s = connect_timeout_s
        self._silence_s = silence_s
        self._retries = retries
        self._lock = threading.Lock()
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}

    async def request(
        self, method: str, path: str, body: bytes = b"", *, silence_s: float | None = None
    ) -> ServerReply:
        """Return a reply whose status and headers have come; leave its `with` early to end the connection."""
        import aiohttp

        silence_s = self._silence_s if silence_s is None else silence_s
        fields = {"Accept": "application/json, text/event-stream", "Accept-Encoding": "identity", **self._headers()}
        if body:
            fields["Content-Type"] = "application/json"
        to_proxy = {} if self._proxy is None else self._proxy.headers
        if not self._is_secure:  # without a tunnel, the proxy takes its own out of the request
            fields |= to_proxy
        pool = await self._pool()
        await pool.limit.acquire()
        try:
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

    async def _head(
        self, pool: _Pool, send: Callable[..., Any], body: bytes, silence_s: float
    ) -> aiohttp.ClientResponse:
        """Send a request until the head of a reply comes or nothing speaks for another attempt."""
        import aiohttp

        attempt = 0
        while not pool.session.closed:
            connection = SimpleNamespace(kept=False)
            data = io.BytesIO(body) if len(body) > _MOST_AT_ONCE_BYTES else body or None
            try:
                # `sock_read` alone would let a server take as long as it likes to read the request.
                async with asyncio.timeout(self._connect_timeout_s + silence_s):
                    response: aiohttp.ClientResponse = await send(data=data, trace_request_ctx=connection)
                    return response
            except (aiohttp.ClientError, TimeoutError) as error:
                failure = _told(self.url, self._proxy, silence_s, error)
                begun = not isinstance(getattr(error, "message", ""), str)  # it is the part of the head that came
                last = attempt == self._retries and not connection.kept
                if failure.fault not in {"connect", "broken"} or begun or last:
                    raise failure from error
            if not connection.kept:  # one that was kept may have been closed by the server: that is no failure
                await asyncio.sleep(_RETRIES.wait_s(attempt))
                attempt += 1
        raise ExchangeError("broken", f"{self.url}: the connections were closed")

    def close(self) -> None:
        """End all connections, whatever their event loop."""
        with self._lock:
            pools, self._pools = self._pools, {}
        for loop, pool in pools.items():
            try:
                loop.call_soon_threadsafe(pool.begin_closing)
            except RuntimeError:  # the loop is closed
                pool.forget()

    async def _pool(self) -> _Pool:
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop in self._pools:
                return self._pools[loop]
            for ended in [other for other in self._pools if other.is_closed()]:
                self._pools.pop(ended).forget()
            pool = self._pools[loop] = _Pool(self._max_connections, self._ssl_context)
        await anext(pool.keeper)
        return pool


class ServerReply:
    """A reply whose body may still be on its way.

    An iterator, not a generator: one that is left early leaves nothing behind for the collector to close.
    """

    def __init__(
        self, url: str, proxy: Proxy | None, pool: _Pool, silence_s: float, response: aiohttp.ClientResponse
    ) -> None:
        self._url, self._proxy, self._pool = url, proxy, pool
        self._silence_s, self._response = silence_s, response
        self._pieces = response.content.iter_any()
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        """Their names in any case."""
        pool.replies.add(self)

    async def read(self, most_bytes: int = MOST_BYTES) -> bytes:
        """Return the rest of the body; `ExchangeError` as soon as there is more of it than `most_bytes`."""
        data = await self._up_to(most_bytes + 1)
        if len(data) > most_bytes:
            raise ExchangeError("too large", f"{self._url}: the reply has more than {most_bytes} bytes")
        return data

    async def read_beginning(self, most_bytes: int = 1 << 16) -> bytes:
        """Return the first bytes of the body, which is all that is of interest in an error's."""
        return (await self._up_to(most_bytes))[:most_bytes]

    async def _up_to(self, enough_bytes: int) -> bytes:
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
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _told(self._url, self._proxy, self._silence_s, error) from error

    def close(self) -> None:
        """Keep the connection where the reply was read to its end; else end it. Idempotent."""
        if self in self._pool.replies:
            self._pool.replies.remove(self)
            self._response.close()  # leaves alone what the end of the body has given back
            self._pool.limit.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Pool:
    """The connections of one event loop."""

    def __init__(self, most: int, context: ssl.SSLContext | None) -> None:
        import aiohttp

        self.limit = asyncio.Semaphore(most)
        self.replies: set[ServerReply] = set()
        self.keeper = self._keep()
        """Begun, it stays open until the event loop ends, which closes the generators that still are."""
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

    async def _keep(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self._close()

    def begin_closing(self) -> None:
        """Close on the pool's own event loop, without waiting for it."""
        self._closing = asyncio.get_running_loop().create_task(self._close())

    def forget(self) -> None:
        """Close after the event loop has: nothing is left to wait for."""
        with contextlib.suppress(StopIteration):
            self.session.close().send(None)

    async def _close(self) -> None:
        for reply in tuple(self.replies):
            reply.close()
        await self.session.close()


async def _note_kept(_session: object, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx.kept = True


def _told(url: str, proxy: Proxy | None, silence_s: float, error: Exception) -> ExchangeError:
    """Put what aiohttp says into our words."""
    import aiohttp

    said = " ".join(str(error).split())[:_MOST_SHOWN_CHARS] or type(error).__name__
    way = "" if proxy is None else f" through the proxy {proxy.url}"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return ExchangeError("connect", f"{url}: no connection{way}: it answered with status {error.status}")
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return ExchangeError("connect", f"{url}: no connection{way}: {said}")
    if isinstance(error, TimeoutError):
        return ExchangeError("silent", f"{url}: nothing was heard for {silence_s:g} s")
    if isinstance(error, aiohttp.ClientResponseError):
        return ExchangeError("garbled", f"{url}: the reply is not HTTP: {said}")
    return ExchangeError("broken", f"{url}: the connection ended before the reply was whole: {said}")


async def server_sent_events(
    pieces: AsyncIterable[bytes], *, most_event_bytes: int = MOST_BYTES, most_bytes: float = math.inf
) -> AsyncGenerator[bytes, None]:
    """Yield the data of each event of a `text/event-stream` body.

    `ExchangeError` for an event that grows beyond `most_event_bytes`, and for a stream that does beyond `most_bytes`.
    """
    begun: list[bytes] = []  # of a line whose end has not come: joined once, however many pieces it comes in
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
            elif not line and data:
                yield data[0] if len(data) == 1 else b"\n".join(data)
                data, data_bytes = [], 0
        begun.append(rest)
        begun_bytes += len(rest)
        if begun_bytes + data_bytes > most_event_bytes:
            raise ExchangeError("too large", f"an event of its stream has more than {most_event_bytes} bytes")
        if total_bytes > most_bytes:
            raise ExchangeError("too large", f"its stream has more than {most_bytes:g} bytes")
