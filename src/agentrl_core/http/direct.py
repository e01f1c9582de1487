"""Lean HTTP/1.1 connections to servers that need neither TLS nor a proxy, for calls of which a run makes millions.

`ServerClient` takes them for model servers: aiohttp's own cost is a third of what such a call costs this process. What
it offers besides (redirects, cookies, compression, forms) is not needed there. httptools parses the replies.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal, Self

import httptools
from multidict import CIMultiDict

Fault = Literal["connect", "silent", "broken", "garbled"]
"""See `server_client.Fault`."""

_MOST_HEAD_BYTES = 1 << 16
_MOST_WAITING_BYTES = 1 << 20
"""Bytes of a body that may wait for their reader before the server is held back."""
_FIRST_FINAL_STATUS = 200


class DirectError(Exception):
    """An exchange failed. `begun`: a part of the reply had come. `kept`: the connection had been used before."""

    def __init__(self, fault: Fault, message: str, *, begun: bool = False, kept: bool = False) -> None:
        super().__init__(message)
        self.fault, self.begun, self.kept = fault, begun, kept


class DirectConnections:
    """Connections to one server from one event loop; an idle one is kept for `kept_s`."""

    def __init__(self, host: str, port: int, *, kept_s: float) -> None:
        self._host, self._port, self._kept_s = host, port, kept_s
        self._host_header = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._idle: deque[_Connection] = deque()
        self._all: set[_Connection] = set()

    async def send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        connect_timeout_s: float,
        silence_s: float,
    ) -> DirectReply:
        """Send a request, and return the reply once its head has come; raises `DirectError`."""
        connection = self._take_idle() or await self._connect(connect_timeout_s)
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host_header}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}", "\r\n"]
        return await connection.exchange("\r\n".join(lines).encode("latin-1") + body, silence_s)

    def close(self) -> None:
        """End all connections, also those in use."""
        for connection in tuple(self._all):
            connection.abort()
        self._idle.clear()

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()  # the one used last, which the server has kept for the shortest time
            if connection.is_open and time.monotonic() - connection.idle_since < self._kept_s:
                return connection
            connection.abort()
        return None

    async def _connect(self, timeout_s: float) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(lambda: _Connection(self), self._host, self._port)
        except TimeoutError as error:
            raise DirectError("connect", f"no answer within {timeout_s:g} s") from error
        except OSError as error:
            said = error.strerror or str(error)
            raise DirectError("connect", f"Cannot connect to host {self._host}:{self._port} [{said}]") from error
        return connection

    def opened(self, connection: _Connection) -> None:
        """Note a new connection."""
        self._all.add(connection)

    def ended(self, connection: _Connection) -> None:
        """Forget a connection."""
        self._all.discard(connection)

    def free(self, connection: _Connection) -> None:
        """Keep a connection whose reply is complete."""
        self._idle.append(connection)


class DirectReply:
    """Reply whose body may still be arriving."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.status = 0
        """0 until the head has come."""
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.pieces: deque[bytes] = deque()
        self.waiting_bytes = 0
        self.is_complete = False
        self.failure: DirectError | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Wait for the next bytes of the body; raises `DirectError`."""
        while not self.pieces:
            if self.is_complete:
                raise StopAsyncIteration
            if self.failure is not None:
                raise self.failure
            await self._connection.wait()
        data = self.pieces.popleft()
        self.waiting_bytes -= len(data)
        self._connection.hold_back(self)
        return data

    def take_rest(self) -> bytes | None:
        """Return the rest of the body if all of it has come, else None; does not wait."""
        if not self.is_complete:
            return None
        rest = b"".join(self.pieces)
        self.pieces.clear()
        self.waiting_bytes = 0
        return rest

    def close(self) -> None:
        """End the connection unless the reply is complete."""
        if not self.is_complete and self.failure is None:
            self._connection.abort()


class _Connection(asyncio.Protocol):
    """One connection, with one exchange at a time."""

    def __init__(self, owner: DirectConnections) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._reply: DirectReply | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._silence_s = self._heard = 0.0
        self._head_bytes = 0
        self._status = 0
        self._headers: CIMultiDict[str] = CIMultiDict()
        self._is_held = False
        self.idle_since = 0.0
        self.num_exchanges = 0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, silence_s: float) -> DirectReply:
        """Send a request; return the reply once its head has come."""
        self.num_exchanges += 1
        self._reply = reply = DirectReply(self)
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        self._head_bytes, self._status, self._headers = 0, 0, CIMultiDict()
        self._silence_s, self._heard = silence_s, self._loop.time()
        self._timer = self._loop.call_later(silence_s, self._check_silence)
        self._transport.write(request)
        try:
            while not reply.status and reply.failure is None:
                await self.wait()
        except BaseException:
            self.abort()
            raise
        if not reply.status and reply.failure is not None:
            raise reply.failure
        return reply

    async def wait(self) -> None:
        """Wait until something happens."""
        self._waiter = self._loop.create_future()
        await self._waiter

    def hold_back(self, reply: DirectReply) -> None:
        """Read on once the reader has caught up."""
        if self._is_held and reply.waiting_bytes < _MOST_WAITING_BYTES and self._reply is reply:
            self._is_held = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        self._end("broken", "the connections were closed")

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._reply is None or self._parser is None:
            self.abort()  # nothing was asked
            return
        self._heard = self._loop.time()
        if not self._reply.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("garbled", "it switches to another protocol")
        except httptools.HttpParserError as error:
            self._fail("garbled", str(error))
        if self._reply is not None and not self._reply.status and self._head_bytes > _MOST_HEAD_BYTES:
            self._fail("garbled", f"the head has more than {_MOST_HEAD_BYTES} bytes")
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        reply = self._reply
        if error is None and reply is not None and reply.status and not self._has_length:
            self.on_message_complete()  # such a body ends with its connection
        self._end("broken", str(error) if error else "Server disconnected")

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        if self._reply is None:
            # Surplus bytes, which the next request on this connection would take for its reply.
            self._transport.abort()

    def on_status(self, _: bytes) -> None:
        self._headers = CIMultiDict()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.add(name.decode("latin-1"), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        assert self._parser is not None  # noqa: S101 (the caller)
        self._status = self._parser.get_status_code()
        if self._status >= _FIRST_FINAL_STATUS and self._reply is not None:
            self._reply.status, self._reply.headers = self._status, self._headers

    def on_body(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:
            return
        reply.pieces.append(data)
        reply.waiting_bytes += len(data)
        if reply.waiting_bytes >= _MOST_WAITING_BYTES and not self._is_held:
            self._is_held = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        reply, parser = self._reply, self._parser
        if reply is None or parser is None or self._status < _FIRST_FINAL_STATUS:
            return  # 1xx: the reply is yet to come
        reply.is_complete = True
        self._reply = None
        self._stop_timer()
        if self._is_held:
            self._is_held = False
            self._transport.resume_reading()
        if self.is_open and parser.should_keep_alive():
            self.idle_since = time.monotonic()
            self._owner.free(self)
        elif self._transport is not None:
            self._transport.close()

    # The end.

    @property
    def _has_length(self) -> bool:
        return "content-length" in self._headers or "chunked" in self._headers.get("transfer-encoding", "").lower()

    def _check_silence(self) -> None:
        left_s = self._heard + self._silence_s - self._loop.time()
        if left_s > 0 or self._is_held:
            # While the server is held back, silence is our own.
            self._timer = self._loop.call_later(self._silence_s if self._is_held else left_s, self._check_silence)
        else:
            self._fail("silent", "")

    def _fail(self, fault: Fault, said: str) -> None:
        self._end(fault, said)
        self._transport.abort()

    def _end(self, fault: Fault, said: str) -> None:
        """Fail the running exchange, if there is one."""
        self._owner.ended(self)
        self._stop_timer()
        reply, self._reply = self._reply, None
        if reply is not None and not reply.is_complete:
            reply.failure = DirectError(fault, said, begun=self._head_bytes > 0, kept=self.num_exchanges > 1)
        self._wake()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
