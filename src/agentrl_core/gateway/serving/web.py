"""Types of HTTP requests, responses, streams and pages, whatever the server; decoding of JSON bodies within limits."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import orjson

from agentrl_core.errors import RequestError
from agentrl_core.gateway.large_requests import in_one_go

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from agentrl_core.gateway.call_types import Dialect

MAX_BODY_BYTES = 16 * 2**20
"""Largest request body; a million tokens of text are about 4 MB."""

MAX_DEPTH = 100
"""Deepest nesting of a request's JSON; templates, parsers and stores handle it without further checks."""

MAX_CONTAINERS = 100_000
"""Most objects and arrays in a request's JSON; some ten thousand messages have as many."""
MAX_VALUES = 1_000_000
"""Most items and keys in a request's JSON; enough for the token ids of the longest prompts."""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_PIECE_BYTES = 2**20
_GZIP = b"\x1f\x8b"
Headers: TypeAlias = tuple[tuple[str, str], ...]
_JSON: Headers = (("content-type", "application/json"),)
EVENTS: Headers = (("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache"))
"""Headers of a streamed response."""


class MethodNotAllowedError(RequestError):
    """Request (405) for a route that has other methods, which the header `Allow` of its response names."""

    def __init__(self, message: str, *, allowed: str) -> None:
        super().__init__(405, "method_not_allowed", message)
        self.allowed = allowed


@attrs.define(kw_only=True, eq=False)
class HttpRequest:
    """HTTP request, from a socket or from inside the process."""

    method: str
    path: str = attrs.field(repr=False)
    """Path of the URL; not shown, as it may contain a session's token."""
    query: str = ""
    """Query of the URL, without the question mark."""
    headers: Mapping[str, str] = attrs.field(repr=False)
    """Headers by lower-case name; not shown, as they contain keys."""
    body: bytes
    local: bool = True
    """Whether the request comes from this machine and not through a proxy."""
    on_body_taken: Callable[[], None] = attrs.field(default=lambda: None, repr=False)
    """Callback when the body no longer needs its room in memory; may be called on another thread and repeatedly."""

    def take_body(self) -> bytes:
        """Return the body and drop it here: a request lives as long as its generation, and the body may be large."""
        body, self.body = self.body, b""
        self.on_body_taken()
        return body


@attrs.frozen(kw_only=True)
class HttpResponse:
    """HTTP response, complete or streamed."""

    status: int = 200
    headers: Headers = _JSON
    body: bytes | AsyncGenerator[bytes, None]
    """Body; the receiver of a stream closes it, and closing it early aborts the generation."""


class WrappedStream(AsyncGenerator[bytes, None]):
    """Stream of a reply that passes on the items of another stream and, whenever it is closed, closes that.

    An async generator that wraps another cannot do this: closed before its first item, its body never runs, `finally`
    included, and the wrapped generator stays open until garbage collection. Its generation would go on in the engine.
    """

    def __init__(self, stream: AsyncGenerator[bytes, None]) -> None:
        self._stream = stream

    async def asend(self, value: None) -> bytes:
        """Return the next item."""
        return await self._stream.asend(value)

    async def athrow(self, *error: Any) -> bytes:
        """Raise an exception inside the wrapped stream."""
        return await self._stream.athrow(*error)

    async def aclose(self) -> None:
        """Close the wrapped stream."""
        await self._stream.aclose()


class StartedStream(WrappedStream):
    """Stream whose first item was already taken from it; yields that item again, then the rest."""

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None]) -> None:
        super().__init__(rest)
        self._first: bytes | None = first

    async def asend(self, value: None) -> bytes:
        """Return the first item, then the others."""
        # Taken out, so that it is sent once and not kept for as long as the stream lasts.
        first, self._first = self._first, None
        return await super().asend(value) if first is None else first


@attrs.frozen
class Page:
    """Handler of a route that is no LLM API: health, models, sessions."""

    answer: Callable[[HttpRequest], Awaitable[HttpResponse]]
    """Function that answers an authorized request."""
    method: str = "GET"
    check: Callable[[HttpRequest], object] = lambda _: None
    """Function that raises `RequestError` for an unauthorized request; the body may not have arrived yet."""


def decode_body(body: bytes, *, most_bytes: int = MAX_BODY_BYTES) -> Any:
    """Decode a JSON body; `RequestError` (400) if it is invalid, too deep or of too many values, (413) if too large."""
    if len(body) > most_bytes:
        raise RequestError(413, "request_too_large", f"the body exceeds {most_bytes} bytes")
    # Before decoding: once orjson has begun, nothing stops it from building millions of objects.
    containers = _count_containers(body)
    try:
        value = in_one_go(len(body), lambda: orjson.loads(body))
    except orjson.JSONDecodeError as error:
        found = "compressed; send it uncompressed" if body.startswith(_GZIP) else f"not valid JSON: {error}"
        raise RequestError(400, "invalid_json", f"the body is {found}") from error
    # JSON cannot be nested deeper than it has brackets, and most bodies have few: then no walk is needed.
    if containers > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise RequestError(400, "invalid_json", f"the body is nested deeper than {MAX_DEPTH} levels")
    return value


def _count_containers(body: bytes) -> int:
    """Return an upper bound of the number of objects and arrays in a body, without decoding it.

    `RequestError` (400) for more values than any useful request has: creating them as Python objects would block the
    whole process.
    """
    containers = _count(body, b"[") + _count(body, b"{")
    if len(body) <= MAX_CONTAINERS:
        return containers
    separators = _count(body, b",")
    if containers <= MAX_CONTAINERS and separators <= MAX_VALUES:
        return containers
    strings = 0
    # The first count was too high because of brackets and commas inside of strings, or it is correct: find out.
    for string in _STRING.finditer(body):
        start, end = string.span()
        containers -= body.count(b"[", start, end) + body.count(b"{", start, end)
        separators -= body.count(b",", start, end)
        strings += 1
        # Keys and values: more strings than this are too many values in any case.
        if strings > 2 * MAX_VALUES:
            break
    if containers > MAX_CONTAINERS or separators > MAX_VALUES or strings > 2 * MAX_VALUES:
        raise RequestError(
            400,
            "invalid_json",
            f"the body has more than {MAX_CONTAINERS:,} objects and arrays, or more than {MAX_VALUES:,} values",
        )
    return containers


def _count(body: bytes, character: bytes) -> int:
    """Count a character piece by piece, as no other thread runs while one piece is counted."""
    return sum(body.count(character, start, start + _PIECE_BYTES) for start in range(0, len(body), _PIECE_BYTES))


def _is_deeper(value: Any, limit: int) -> bool:
    """Return whether decoded JSON is nested in more than `limit` levels of arrays and objects."""
    # Level by level instead of recursively, as the nesting may exceed Python's recursion limit.
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        if not level:
            return False
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, (dict, list))
        ]
    return bool(level)


def refused(dialect: Dialect, refusal: RequestError) -> HttpResponse:
    """Build the response of a refusal in the format of its API, with the headers that belong to its status."""
    headers = [*_JSON]
    # HTTP allows whole seconds only; rounded up, so that no retry comes too early.
    if refusal.retry_after_s is not None:
        headers.append(("retry-after", str(math.ceil(refusal.retry_after_s))))
    if isinstance(refusal, MethodNotAllowedError):
        headers.append(("allow", refusal.allowed))
    return HttpResponse(status=refusal.status, headers=tuple(headers), body=orjson.dumps(dialect.error(refusal)))


def json_response(value: Any, *, status: int = 200, headers: Headers = ()) -> HttpResponse:
    """Build a response with a JSON body."""
    return HttpResponse(status=status, headers=(*_JSON, *headers), body=orjson.dumps(value))
