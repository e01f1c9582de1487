"""One client's connection: its limits, and the end of the answer that it waits for when it leaves.

ASGI only tells that a client left to who waits for it, which takes a second task for every request: 60 µs of CPU
time. Nor does uvicorn bound how long a request may take to arrive, how large its head is, or how long a client may
leave its reply unread.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agentrl_core.errors import RequestError
from agentrl_core.gateway.serving.closing import last_response, turned_away

if TYPE_CHECKING:
    from agentrl_core.gateway.serving.limits import Limits
    from agentrl_core.gateway.serving.web import HttpResponse

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

CONNECTION = "agentrl.connection"
"""Key of a request's scope: the `Connection` that it came by."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_COMMENT = b"3\r\n:\n\n\r\n"
"""As a chunk of a stream of events, which is the only kind of response that comes in pieces."""
_FIRST_PROBE_S, _LAST_PROBE_S = 0.01, 1.0
"""How often a client that sends no more is asked whether it still reads: each time half as often."""


_turns = itertools.count()


class Connection(HttpToolsProtocol):
    """uvicorn's side of a connection. Its requests are answered one at a time, pipelined ones too."""

    def __init__(self, *args: Any, limits: Limits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._answering: asyncio.Task[Any] | None = None
        self._current: Any = None
        """The request that is answered, or was last."""
        self._gone = False
        self._in_head = False
        self._asks_upgrade = False
        """Whether the head that was just read asks for another protocol."""
        self._arrived = 0
        self._wire_bytes = 0
        """Of the request that is arriving."""
        self._request_since: float | None = None
        """When the request began that is still arriving."""
        self._idle_since = self._unread_since = self._refused_at = 0.0
        self._idle_turn = next(_turns)
        """Orders connections by when they became idle: the loop's clock is too coarse for that."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_whole_body(self) -> bool:
        """Whether the body of the request to be answered is here: reading it waits for nobody."""
        return not self._current.more_body

    @property
    def announced_bytes(self) -> int | None:
        """The length of that body; None where its client does not tell it."""
        return next((int(value) for name, value in self._current.scope["headers"] if name == b"content-length"), None)

    @contextmanager
    def answering(self) -> Iterator[bool]:
        """Cancel what the current task does inside when the client leaves; yields whether it has left already."""
        self._answering = asyncio.current_task()
        try:
            yield self._gone
        except asyncio.CancelledError:
            if not self._gone:
                raise
        finally:
            self._answering = None

    def refuse(self, response: HttpResponse) -> None:
        """Send the last response of this connection; what the client still sends is read for a moment, and dropped.

        To close at once would reset the connection of a client that is sending, and it would not see the response.
        """
        if self._gone or self.transport.is_closing():
            return
        started = self._is_busy and self._current.response_started
        self._leave()
        if started:  # another answer was on its way: nothing can be put into it
            self.transport.abort()
            return
        self._refused_at = self.loop.time()
        self.transport.write(last_response(response))
        self.transport.write_eof()
        self.flow.resume_reading()
        self._watch_in(self._limits.linger_s)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Take a client in, unless there are too many."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        surplus = len(self.connections) - self._limits.connections
        if surplus > self._limits.surplus:
            transport.abort()
        elif surplus > 0 and not self._take_place():
            self._turn_away(503, "too_many_connections", "the gateway has too many connections; try again later")
        else:
            self._watch_in(self._limits.shortest_s)

    def data_received(self, data: bytes) -> None:
        """Parse what has come; a request that breaks a limit or HTTP's rules is refused."""
        self._arrived = len(data)
        self._wire_bytes += self._arrived
        if self._gone:
            if self._wire_bytes > self._limits.wire_bytes:
                self.transport.abort()
            return
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
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
        """Parse data as HTTP/1.1, whatever protocol its clients would rather speak.

        At a head that asks for another one the parser stops, as if the rest were in that; but this server may go on
        in HTTP/1.1 (RFC 9110, 7.8), which Java's own client counts on. A new parser gets the head without the wish.
        """
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stop:
                data = self._head_without_upgrade() + data[stop.args[0] :]
                self._asks_upgrade = False
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's first one
            else:
                return

    def _head_without_upgrade(self) -> bytes:
        start = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        headers = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        return b"".join([start, *headers, b"\r\n"])

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio lets it return whether to stay open
        """Go on answering one who only sends no more; one who has left does not acknowledge an interim response."""
        if self._gone or not self._is_busy or self._request_since is not None:
            return False
        self.cycle.keep_alive = False
        if self.scope["http_version"] == "1.1":  # older ones know no interim responses
            self._probe(_FIRST_PROBE_S)
        return True

    def pause_writing(self) -> None:
        """Note that the client does not read what it is sent."""
        super().pause_writing()
        self._unread_since = self.loop.time()

    def on_message_begin(self) -> None:
        """Let the request know its connection."""
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]  # a scope may have keys of the server
        self._request_since = self.loop.time()
        self._in_head, self._wire_bytes = True, self._arrived
        if len(self.pipeline) >= self._limits.pipelined:
            raise RequestError(400, "too_many_requests", "too many requests before the first answer")

    def on_url(self, url: bytes) -> None:
        """Bound the URL."""
        super().on_url(url)
        if len(self.url) > self._limits.url_bytes:
            raise RequestError(414, "url_too_long", f"the URL exceeds {self._limits.url_bytes} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take the headers before the body; those behind it would come after the check of the client's key."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Bound the headers."""
        self._in_head = False
        if len(self.headers) > self._limits.headers:
            raise RequestError(431, "headers_too_large", f"more than {self._limits.headers} headers")
        if sum(map(len, map(b"".join, self.headers))) > self._limits.head_bytes:
            raise RequestError(431, "headers_too_large", f"the headers exceed {self._limits.head_bytes} bytes")
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() == "1.1"):
            raise RequestError(400, "invalid_http", f"a request names one host, this one has {hosts} Host headers")
        self._asks_upgrade = self.parser.should_upgrade()
        if not self._asks_upgrade:
            super().on_headers_complete()
        elif self.parser.get_method() == b"CONNECT":
            raise RequestError(400, "invalid_http", "this is no proxy: it opens no tunnels")

    def on_message_complete(self) -> None:
        """Stop the request's clock."""
        if self._asks_upgrade:  # the same request is parsed once more
            return
        super().on_message_complete()
        self._request_since = None
        self._idle_since = self.loop.time()

    def on_response_complete(self) -> None:
        """Go on to the next request. uvicorn's own would set a timer each time, to see whether one comes."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._idle_since, self._idle_turn = self.loop.time(), next(_turns)
        if self._request_since is not None:  # it may have waited for this
            self._request_since = self._idle_since
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the running answer: nobody waits for it any more."""
        super().connection_lost(exc)
        self._leave()
        if self._timer is not None:
            self._timer.cancel()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._current = cycle
        super()._start_asgi_task(cycle, app)

    @property
    def _is_busy(self) -> bool:
        """Whether a request whose head is here waits for its answer."""
        return self._current is not None and not self._current.response_complete

    @property
    def _is_arriving(self) -> bool:
        """Whether the client has yet to send a part of the request whose turn it is."""
        in_turn = not self._is_busy or (self.cycle is self._current and not self._in_head)
        return in_turn and self._request_since is not None

    def _is_idle(self) -> bool:
        return not (self._gone or self._is_busy or self._request_since is not None or self.transport.is_closing())

    def _take_place(self) -> bool:
        """Close the connection that has been idle longest, if there is one beside this."""
        others = [other for other in cast("set[Connection]", self.connections) if other is not self]
        idle = [other for other in others if other._is_idle()]  # noqa: SLF001 - of the same class
        if not idle:
            return False
        min(idle, key=lambda other: other._idle_turn).transport.close()  # noqa: SLF001 - of the same class
        return True

    def _turn_away(self, status: int, code: str, message: str) -> None:
        self.refuse(turned_away(status, code, message))

    def _leave(self) -> None:
        """Cancel the running answer, and send none to the requests behind it."""
        self._gone = True
        self.pipeline.clear()
        if self._current is not None:
            self._current.disconnected = True
            self._current.waiting_for_100_continue = False  # who still reads the body would write a word to the client
            self._current.message_event.set()
        if self._answering is not None:
            self._answering.cancel()

    def _probe(self, wait_s: float) -> None:
        """Send what a client must ignore: the system of one that has closed resets the connection, which ends it."""
        if self._gone or self.transport.is_closing():
            return
        if not self._current.response_started:
            self.transport.write(_CONTINUE)
        elif self._current.chunked_encoding:
            self.transport.write(_COMMENT)
        self.loop.call_later(wait_s, self._probe, min(2 * wait_s, _LAST_PROBE_S))

    def _watch(self) -> None:
        """End the connection of a client that is late; otherwise look again when it next can be."""
        left = self._due() - self.loop.time()
        if left > 0:
            self._watch_in(min(left, self._limits.shortest_s))
        elif self._is_arriving and not self._gone and (self._in_head or not self._current.response_started):
            self._turn_away(408, "request_timeout", f"the request was not here after {self._limits.request_s:g} s")
        else:
            self.transport.abort()

    def _watch_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self._watch)

    def _due(self) -> float:
        """When the client is late, unless it does something before."""
        limits = self._limits
        if self._refused_at:
            return self._refused_at + limits.linger_s
        if self.flow.write_paused:
            return self._unread_since + limits.unread_s
        if self._request_since is not None and self._is_arriving:
            return self._request_since + limits.request_s
        if self._is_busy:
            return float("inf")
        return self._idle_since + (limits.idle_s if self.cycle is not None else limits.request_s)
