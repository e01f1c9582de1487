"""uvicorn's protocol class for one TCP connection, with limits on its client and an abort when the client disconnects.

ASGI reports a disconnect only to a task that waits for it. A second task per request would cost 60 µs of CPU time, so
the connection cancels the answer itself. It also bounds what uvicorn does not: the time in which a request must arrive,
the size of its head, and the time for which a client may leave its response unread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from agentrl_core.errors import RequestError
from agentrl_core.gateway.dialects.openai_replies import openai_error
from agentrl_core.gateway.serving.web import HttpResponse

if TYPE_CHECKING:
    from agentrl_core.gateway.serving.limits import Limits

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

CONNECTION = "agentrl.connection"
"""Key of the request's `Connection` in the ASGI scope."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_COMMENT = b"3\r\n:\n\n\r\n"
"""Chunk with a comment of server-sent events, which clients ignore; only event streams are sent in chunks here."""
_FIRST_PROBE_S, _LAST_PROBE_S = 0.01, 1.0
"""First and longest time between probes of a client that closed its sending side; each time is twice the last one."""


class Connection(HttpToolsProtocol):
    """Server side of one TCP connection; requests are answered one at a time, also pipelined ones."""

    def __init__(self, *args: Any, limits: Limits, awaited: dict[Connection, None], **kwargs: Any) -> None:
        """`awaited`: the server's connections whose clients have yet to send a whole request, the oldest wait first."""
        super().__init__(*args, **kwargs)
        self._limits = limits
        # An ordered set, as a search among thousands of connections would block the event loop for each newcomer.
        self._awaited = awaited
        self._answering: asyncio.Task[Any] | None = None
        self._current: Any = None
        """Request that is being answered, or was answered last."""
        self._gone = False
        """Whether the client disconnected or was refused; nothing more is answered."""
        self._in_head = False
        """Whether the parser is inside a request's head."""
        self._asks_upgrade = False
        """Whether the head that was just read asks for another protocol."""
        self._arrived = 0
        """Size of the latest data."""
        self._wire_bytes = 0
        """Bytes received of the request that is arriving."""
        self._request_since: float | None = None
        """Time at which the arriving request began, in the loop's seconds; None while none is arriving."""
        self._idle_since = self._unread_since = self._refused_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_whole_body(self) -> bool:
        """Whether the body of the current request has arrived, so that reading it does not wait for the client."""
        return not self._current.more_body

    @property
    def announced_bytes(self) -> int | None:
        """Content-Length of the current request; None without that header."""
        return next((int(value) for name, value in self._current.scope["headers"] if name == b"content-length"), None)

    @contextmanager
    def answering(self) -> Iterator[bool]:
        """Cancel the current task inside this context if the client disconnects; yields whether it already has.

        A cancellation by a disconnect ends the context quietly; any other one is passed on.
        """
        self._answering = asyncio.current_task()
        try:
            yield self._gone
        except asyncio.CancelledError:
            if not self._gone:
                raise
        finally:
            self._answering = None

    def refuse(self, response: HttpResponse) -> None:
        """Send a last response and close the connection soon after; data that still arrives is read and dropped.

        Closing at once would reset the connection of a client that is still sending, and it would not see the response.
        """
        if self._gone or self.transport.is_closing():
            return
        started = self._is_busy and self._current.response_started
        self._leave()
        # Another response is partly sent, so this one cannot be written.
        if started:
            self.transport.abort()
            return
        self._refused_at = self.loop.time()
        # `write_eof` tells the client that this is all, while its data can still be read.
        self.transport.write(_encoded(response))
        self.transport.write_eof()
        self.flow.resume_reading()
        self._watch_in(self._limits.linger_s)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Accept a connection; with too many, close the one awaited longest, refuse this one or drop it."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        surplus = len(self.connections) - self._limits.connections
        if surplus <= 0 or self._take_place():
            self._await_request()
            self._watch_in(self._limits.shortest_s)
        # A refused connection stays open for `linger_s`, so the number of these is bounded as well.
        elif surplus > self._limits.surplus:
            transport.abort()
        else:
            self._turn_away(503, "too_many_connections", "the gateway has too many connections; try again later")

    def data_received(self, data: bytes) -> None:
        """Parse data; refuse a request that breaks a limit or is invalid HTTP."""
        self._arrived = len(data)
        self._wire_bytes += self._arrived
        # A refused client may still send, so that it can read the refusal, but not without end.
        if self._gone:
            if self._wire_bytes > self._limits.wire_bytes:
                self.transport.abort()
            return
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            # httptools wraps what the callbacks below raise; the refusal is its context.
            cause = error.__context__
            if isinstance(cause, RequestError):
                self._turn_away(cause.status, cause.code, str(cause))
            else:
                self._turn_away(400, "invalid_http", "this is not valid HTTP/1.1")
        else:
            if self._in_head and self._wire_bytes > self._limits.head_bytes:
                self._turn_away(431, "headers_too_large", f"the headers exceed {self._limits.head_bytes} bytes")
            elif self._wire_bytes > self._limits.wire_bytes:
                self._turn_away(413, "request_too_large", f"the request exceeds {self._limits.wire_bytes} bytes")

    def _parse(self, data: bytes) -> None:
        """Parse data as HTTP/1.1 and ignore requests to upgrade to another protocol.

        The parser stops at a head with an `Upgrade` header, as if the rest were in the new protocol. A server may
        continue in HTTP/1.1 (RFC 9110, 7.8), and Java's own client relies on that. So a new parser gets the same head
        without that header.
        """
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stop:
                data = self._head_without_upgrade() + data[stop.args[0] :]
                self._asks_upgrade = False
                self.parser = httptools.HttpRequestParser(self)
                # uvicorn sets the same leniency for the connection's first parser.
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            else:
                return

    def _head_without_upgrade(self) -> bytes:
        start = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        headers = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        return b"".join([start, *headers, b"\r\n"])

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio lets it return whether to stay open
        """Keep the connection open if the client closed only its sending side and waits for an answer.

        From here, a client that closed both sides looks the same. Probes tell the two apart: the machine of a client
        that is gone answers them with a reset.
        """
        if self._gone or not self._is_busy or self._request_since is not None:
            return False
        self.cycle.keep_alive = False
        # HTTP/1.0 has no interim responses, so its clients cannot be probed.
        if self.scope["http_version"] == "1.1":
            self._probe(_FIRST_PROBE_S)
        return True

    def pause_writing(self) -> None:
        """Start the clock of `unread_s`: the client does not read its response."""
        super().pause_writing()
        self._unread_since = self.loop.time()

    def on_message_begin(self) -> None:
        """Start the clock and the byte count of a new request, and put this connection into its scope."""
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]  # a scope may have keys of the server
        self._request_since = self.loop.time()
        # The data that began this request may also hold the end of the one before; that is counted here, too.
        self._in_head, self._wire_bytes = True, self._arrived
        if len(self.pipeline) >= self._limits.pipelined:
            raise RequestError(400, "too_many_requests", "too many requests before the first answer")

    def on_url(self, url: bytes) -> None:
        """Refuse a URL that is too long."""
        super().on_url(url)
        if len(self.url) > self._limits.url_bytes:
            raise RequestError(414, "url_too_long", f"the URL exceeds {self._limits.url_bytes} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; those after the body (trailers) are ignored, as the client's key has been checked by then."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Refuse too many or too large headers, and a wrong number of Host headers."""
        self._in_head = False
        if len(self.headers) > self._limits.headers:
            raise RequestError(431, "headers_too_large", f"more than {self._limits.headers} headers")
        if sum(map(len, map(b"".join, self.headers))) > self._limits.head_bytes:
            raise RequestError(431, "headers_too_large", f"the headers exceed {self._limits.head_bytes} bytes")
        # RFC 9112, 3.2. Sessions' tokens are accepted by the Host header, so it must be unambiguous.
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() == "1.1"):
            raise RequestError(400, "invalid_http", f"expected one Host header; this request has {hosts}")
        self._asks_upgrade = self.parser.should_upgrade()
        if not self._asks_upgrade:
            super().on_headers_complete()
        elif self.parser.get_method() == b"CONNECT":
            raise RequestError(400, "invalid_http", "the gateway is no proxy; CONNECT is not supported")

    def on_message_complete(self) -> None:
        """Stop the clock of a request's arrival."""
        # The same request is parsed again without its Upgrade header.
        if self._asks_upgrade:
            return
        super().on_message_complete()
        self._request_since = None
        self._idle_since = self.loop.time()
        # A request may be answered before its body has arrived; then the next one is awaited now.
        if self._is_busy:
            self._awaited.pop(self, None)
        else:
            self._await_request()

    def on_response_complete(self) -> None:
        """Start the next pipelined request.

        Replaces uvicorn's method, which sets a keep-alive timer after each response; one timer per connection is
        cheaper.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._idle_since = self.loop.time()
        # The next request's time begins now: its client may have been held back until this response was sent.
        if self._request_since is not None:
            self._request_since = self._idle_since
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the running answer, which nobody waits for any more."""
        super().connection_lost(exc)
        self._leave()
        if self._timer is not None:
            self._timer.cancel()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._current = cycle
        super()._start_asgi_task(cycle, app)

    @property
    def _is_busy(self) -> bool:
        """Whether a request whose head has arrived is not answered yet."""
        return self._current is not None and not self._current.response_complete

    @property
    def _is_arriving(self) -> bool:
        """Whether the request whose turn it is has not arrived completely."""
        # A pipelined request is not late while it waits behind another one.
        in_turn = not self._is_busy or (self.cycle is self._current and not self._in_head)
        return in_turn and self._request_since is not None

    def _await_request(self) -> None:
        """Note that the client's next request is awaited from now on."""
        self._awaited.pop(self, None)
        self._awaited[self] = None

    def _take_place(self) -> bool:
        """Close the connection whose client is awaited longest; return False if all are being answered."""
        other = next(iter(self._awaited), None)
        if other is None:
            return False
        other._give_place()  # noqa: SLF001 - of the same class
        return True

    def _give_place(self) -> None:
        """Close at once, after a refusal if a request is arriving."""
        self._awaited.pop(self)
        if self._request_since is not None:
            self._turn_away(
                408, "request_timeout", "the request was not here when another client needed its connection"
            )
        self.transport.close()

    def _turn_away(self, status: int, code: str, message: str) -> None:
        """Refuse below the level of routes, in a format that both OpenAI's and Anthropic's clients read."""
        # Both formats have an `error` object with type and message; Anthropic's clients also expect the outer `type`.
        body = orjson.dumps({"type": "error", **openai_error(RequestError(status, code, message))})
        self.refuse(HttpResponse(status=status, body=body))

    def _leave(self) -> None:
        """Cancel the running answer, and drop the requests that wait behind it."""
        self._gone = True
        self._awaited.pop(self, None)
        self.pipeline.clear()
        if self._current is not None:
            # uvicorn then drops what is still sent to it, and its `receive` returns a disconnect.
            self._current.disconnected = True
            # Else uvicorn would write "100 Continue" to the client when the body is read, after the last response.
            self._current.waiting_for_100_continue = False
            self._current.message_event.set()
        if self._answering is not None:
            self._answering.cancel()

    def _probe(self, wait_s: float) -> None:
        """Send bytes that a client must ignore; if the client is gone, its machine resets the connection."""
        if self._gone or self.transport.is_closing():
            return
        if not self._current.response_started:
            self.transport.write(_CONTINUE)
        elif self._current.chunked_encoding:
            self.transport.write(_COMMENT)
        self.loop.call_later(wait_s, self._probe, min(2 * wait_s, _LAST_PROBE_S))

    def _watch(self) -> None:
        """Close the connection if its client is late, else set the timer to when it can next be late."""
        left = self._due() - self.loop.time()
        if left > 0:
            self._watch_in(min(left, self._limits.shortest_s))
        # A refusal can only be written while no other response is partly sent.
        elif self._is_arriving and not self._gone and (self._in_head or not self._current.response_started):
            self._turn_away(408, "request_timeout", f"the request was not here after {self._limits.request_s:g} s")
        else:
            self.transport.abort()

    def _watch_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self._watch)

    def _due(self) -> float:
        """Return the time at which the client is late if it does nothing until then, in the loop's seconds."""
        limits = self._limits
        if self._refused_at:
            return self._refused_at + limits.linger_s
        if self.flow.write_paused:
            return self._unread_since + limits.unread_s
        if self._request_since is not None and self._is_arriving:
            return self._request_since + limits.request_s
        # A generation may take any time, and its client is not idle while it waits.
        if self._is_busy:
            return float("inf")
        return self._idle_since + (limits.idle_s if self.cycle is not None else limits.request_s)


def _encoded(response: HttpResponse) -> bytes:
    """Encode a non-streamed response with `connection: close`, as bytes for the socket."""
    body = cast("bytes", response.body)
    headers = (*response.headers, ("content-length", str(len(body))), ("connection", "close"))
    head = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return b"".join([STATUS_LINE[response.status], head.encode(), b"\r\n", body])
