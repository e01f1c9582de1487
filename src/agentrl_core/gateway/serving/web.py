"""What goes over HTTP: requests, responses, and JSON in both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import orjson

from agentrl_core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from agentrl_core.gateway.exchange import Dialect

MAX_BODY_BYTES = 16 * 2**20
"""Largest request body; a million tokens of text are about 4 MB."""

MAX_DEPTH = 100
"""Deepest nesting of a request's JSON: what a template, a parser and a store can take without a thought."""

_GZIP = b"\x1f\x8b"
_JSON = (("content-type", "application/json"),)
EVENTS = (("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache"))
"""Headers of a stream."""


@attrs.frozen(kw_only=True)
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


def decode_body(body: bytes) -> Any:
    """Read a JSON body; `RequestError` (400) where it is none, or too deep."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        found = "compressed: send it as it is" if body.startswith(_GZIP) else f"not valid JSON: {error}"
        raise RequestError(400, "invalid_json", f"the body is {found}") from error
    # Counting brackets is enough for all but large bodies.
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise RequestError(400, "invalid_json", f"the body is nested deeper than {MAX_DEPTH} levels")
    return value


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
    after = () if wait is None else (("retry-after", f"{wait:g}"),)
    return HttpResponse(status=refusal.status, headers=(*_JSON, *after), body=orjson.dumps(dialect.error(refusal)))


def json_response(value: Any, *, status: int = 200) -> HttpResponse:
    """Answer with JSON."""
    return HttpResponse(status=status, body=orjson.dumps(value))
