"""What goes over HTTP: requests, responses, and JSON in both."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import attrs
import orjson

from agentrl_core.errors import RequestError
from agentrl_core.gateway.large import in_one_go

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from agentrl_core.gateway.exchange import Dialect

MAX_BODY_BYTES = 16 * 2**20
"""Largest request body; a million tokens of text are about 4 MB."""

MAX_DEPTH = 100
"""Deepest nesting of a request's JSON: what a template, a parser and a store can take without a thought."""

MAX_CONTAINERS = 100_000
"""Objects and arrays in a request's JSON: some ten thousand messages have as many."""
MAX_VALUES = 1_000_000
"""Items and keys in a request's JSON: the token ids of the longest prompts."""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_PIECE_BYTES = 2**20
_GZIP = b"\x1f\x8b"
_JSON = (("content-type", "application/json"),)
EVENTS = (("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache"))
"""Headers of a stream."""


@attrs.define(kw_only=True, eq=False)
class HttpRequest:
    """What a client sent."""

    method: str
    path: str = attrs.field(repr=False)
    """May hold a session's token, as the headers its key."""
    headers: Mapping[str, str] = attrs.field(repr=False)
    """Names in lower case."""
    body: bytes
    local: bool = True
    """Whether it comes from this machine."""
    on_body_taken: Callable[[], None] = attrs.field(default=lambda: None, repr=False)
    """Called when the body needs its room in memory no more; perhaps on another thread, and more than once."""

    def take_body(self) -> bytes:
        """Return the body and give it up: a request lives as long as its generation, and a body may be large."""
        body, self.body = self.body, b""
        self.on_body_taken()
        return body


@attrs.frozen(kw_only=True)
class HttpResponse:
    """What it gets back."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = _JSON
    body: bytes | AsyncGenerator[bytes, None]
    """A stream's owner closes it; closing it early aborts the generation."""


@attrs.frozen
class Page:
    """What answers a route that is no dialect's."""

    answer: Callable[[HttpRequest], Awaitable[HttpResponse]]
    method: str = "GET"
    check: Callable[[HttpRequest], object] = lambda _: None
    """Refuses, by `RequestError`, those who may not ask; it does not look at the body, which may not be there yet."""


def decode_body(body: bytes, *, most_bytes: int = MAX_BODY_BYTES) -> Any:
    """Read a JSON body; `RequestError` (400) where it is none, too deep or of too many values."""
    if len(body) > most_bytes:
        raise RequestError(413, "request_too_large", f"the body exceeds {most_bytes} bytes")
    containers = _count_containers(body)
    try:
        value = in_one_go(len(body), lambda: orjson.loads(body))
    except orjson.JSONDecodeError as error:
        found = "compressed: send it as it is" if body.startswith(_GZIP) else f"not valid JSON: {error}"
        raise RequestError(400, "invalid_json", f"the body is {found}") from error
    # Counting brackets is enough for all but large bodies.
    if containers > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise RequestError(400, "invalid_json", f"the body is nested deeper than {MAX_DEPTH} levels")
    return value


def _count_containers(body: bytes) -> int:
    """Return the most objects and arrays that a body may have.

    Refuses more values than JSON of any use has: making them holds up everything else in the process.
    """
    containers = _count(body, b"[") + _count(body, b"{")
    if len(body) <= MAX_CONTAINERS:
        return containers
    separators = _count(body, b",")
    if containers <= MAX_CONTAINERS and separators <= MAX_VALUES:
        return containers
    strings = 0
    for string in _STRING.finditer(body):  # what strings hold does not count
        start, end = string.span()
        containers -= body.count(b"[", start, end) + body.count(b"{", start, end)
        separators -= body.count(b",", start, end)
        strings += 1
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
    """Count a character piece by piece: no other thread runs while one is counted."""
    return sum(body.count(character, start, start + _PIECE_BYTES) for start in range(0, len(body), _PIECE_BYTES))


def _is_deeper(value: Any, limit: int) -> bool:
    """Whether JSON is nested in more than `limit` levels of arrays and objects."""
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
    """Refuse a request in the shape of its API."""
    wait = refusal.retry_after_s
    after = () if wait is None else (("retry-after", str(math.ceil(wait))),)  # whole seconds, as HTTP has it
    return HttpResponse(status=refusal.status, headers=(*_JSON, *after), body=orjson.dumps(dialect.error(refusal)))


def json_response(value: Any, *, status: int = 200) -> HttpResponse:
    """Answer with JSON."""
    return HttpResponse(status=status, body=orjson.dumps(value))
