"""Route HTTP requests to what answers them: one function for real sockets and for calls in process."""

from __future__ import annotations

import logging
import re
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import orjson

from agentrl_core.errors import AgentRLError, RequestError, RunError, UnservableError, UnstorableError
from agentrl_core.gateway.exchange import Delta
from agentrl_core.gateway.openai_chat import OpenAIChat
from agentrl_core.gateway.streaming import TextStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from agentrl_core.gateway.exchange import ChatRequest, Dialect
    from agentrl_core.gateway.service import Call, PolicyService
    from agentrl_core.gateway.sessions import Session, SessionBook

MAX_BODY_BYTES = 16 * 2**20
"""Largest request body; a million tokens of text are about 4 MB."""

MAX_DEPTH = 100
"""Deepest nesting of a request's JSON: what a template, a parser and a store can take without a thought."""

_logger = logging.getLogger(__name__)
_PATH = re.compile(r"(?:/s/(?P<token>[^/]+))?(?P<prefix>(?:/v1)*)(?P<route>/.*)?")
_Page: TypeAlias = "Callable[[HttpRequest, str | None], Awaitable[HttpResponse]]"
_JSON = (("content-type", "application/json"),)
_EVENTS = (("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache"))


@attrs.frozen(kw_only=True)
class HttpRequest:
    """What a client sent."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


@attrs.frozen(kw_only=True)
class HttpResponse:
    """What it gets back."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = _JSON
    body: bytes | AsyncGenerator[bytes, None]
    """A stream's owner closes it; closing it early aborts the generation."""


class Api:
    """All routes. Another API is one more `Dialect` in `_dialects`."""

    def __init__(self, sessions: SessionBook, service: PolicyService) -> None:
        self._sessions = sessions
        self._service = service
        self._dialects: Mapping[str, Dialect] = {"/chat/completions": OpenAIChat()}
        self._pages: Mapping[str, _Page] = {"/health": self._health, "/models": self._models}
        self.fatal: RunError | None = None
        """The failure of the engine or the store that no request can be blamed for; the first one.

        An engine that died or was closed and a store whose file takes no more writes fail every call, so
        nobody need try again. `UnservableError` and `UnstorableError` are about one call: only it fails.
        """

    def refuse_early(self, request: HttpRequest) -> HttpResponse | None:
        """Refuse a call that its method, path and headers already rule out; `request.body` is not looked at."""
        token, route = _split(request.path)
        dialect = self._dialects.get(route)
        if dialect is None:
            return None
        try:
            _check_method(request, "POST")
            self._sessions.authorize(token, request.headers)
        except RequestError as refusal:
            return _json_response(dialect.error(refusal), status=refusal.status)
        return None

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Answer a request; every failure becomes an error in the shape of the API that was called."""
        token, route = _split(request.path)
        dialect = self._dialects.get(route)
        try:
            if dialect is not None:
                _check_method(request, "POST")
                session = self._sessions.authorize(token, request.headers)
                return await self._chat(dialect, request, session)
            answer = self._route(request, route)
            return await answer(request, token)
        except Exception as error:  # noqa: BLE001 - the boundary: a client always gets an answer
            refusal = as_refusal(error)
            return _json_response((dialect or OpenAIChat()).error(refusal), status=refusal.status)

    def _route(self, request: HttpRequest, route: str) -> _Page:
        page = self._pages.get(route)
        if page is None:
            raise RequestError(404, "unknown_url", f"unknown URL: {request.method} {route}")
        _check_method(request, "GET")
        return page

    async def _health(self, _request: HttpRequest, _token: str | None) -> HttpResponse:
        return _json_response({"status": "ok"})

    async def _models(self, request: HttpRequest, token: str | None) -> HttpResponse:
        self._sessions.authorize(token, request.headers)
        model = {"id": "default", "object": "model", "created": 0, "owned_by": "agentrl"}
        return _json_response({"object": "list", "data": [model]})

    async def _chat(self, dialect: Dialect, request: HttpRequest, session: Session) -> HttpResponse:
        service = self._service
        try:
            parsed = dialect.parse(_decode_body(request.body), request.headers)
            call = service.begin(session, parsed, dialect.id_prefix)
            if parsed.stream:
                return HttpResponse(headers=_EVENTS, body=self._stream(dialect, parsed, call))
            return _json_response(dialect.response(await service.complete(call), service.chat.decode))
        except Exception as error:  # noqa: BLE001 - the boundary: a client always gets an answer
            refusal = self._refusal(error, session)
            return _json_response(dialect.error(refusal), status=refusal.status)

    async def _stream(self, dialect: Dialect, request: ChatRequest, call: Call) -> AsyncGenerator[bytes, None]:
        service, chat = self._service, self._service.chat
        writer = dialect.writer(request, call.id, chat.decode)
        openers = chat.parser.openers if request.parse_tools else ()
        text = TextStream(chat.decoder(), openers=openers, stop=request.stop)
        ends = call.sampling.stop_token_ids
        yield writer.begin()
        try:
            async with aclosing(service.sample(call)) as chunks:
                async for chunk in chunks:
                    certain = text.feed([token for token in chunk.ids if token not in ends])
                    if data := writer.delta(Delta(text=certain, ids=chunk.ids, logprobs=chunk.logprobs)):
                        yield data
            reply = await service.finish(call)
            yield writer.end(reply, text.rest(reply.interaction.output["content"] or ""))
        except Exception as error:  # noqa: BLE001 - the status is sent: the error goes where the client reads
            yield writer.error(self._refusal(error, call.session))

    def _refusal(self, error: Exception, session: Session) -> RequestError:
        """Turn a call's failure into its answer, remember it for the session, and for the run what ends the run."""
        one_call = isinstance(error, UnservableError | UnstorableError)
        if isinstance(error, RunError) and not one_call and self.fatal is None:
            self.fatal = error
        refusal = as_refusal(error)
        session.remember_refusal(refusal)
        return refusal


def as_refusal(error: Exception) -> RequestError:
    """Turn any failure into an HTTP error; what nobody foresaw is logged and told without details."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, UnservableError | UnstorableError):  # to send the same again would change nothing
        return RequestError(400, "invalid_request", str(error))
    if isinstance(error, AgentRLError):
        _logger.error("LLM call failed: %s", error)
        return RequestError(500, type(error).__name__, str(error))
    _logger.error("LLM call failed", exc_info=error)
    return RequestError(500, "internal_error", f"the gateway failed: {type(error).__name__}; see the run's log")


def too_large() -> HttpResponse:
    """Refuse a body over `MAX_BODY_BYTES`."""
    refusal = RequestError(413, "request_too_large", f"the body exceeds {MAX_BODY_BYTES} bytes")
    return _json_response(OpenAIChat().error(refusal), status=413)


def _split(path: str) -> tuple[str | None, str]:
    """Return the session's token in a path, if there is one, and the route behind it."""
    match = _PATH.fullmatch(path)
    return (match["token"], match["route"] or "/") if match else (None, path)


def _check_method(request: HttpRequest, allowed: str) -> None:
    if request.method != allowed:
        raise RequestError(405, "method_not_allowed", f"{request.method} is not allowed here; use {allowed}")


def _decode_body(body: bytes) -> Any:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(400, "invalid_json", f"the body is not valid JSON: {error}") from error
    if _is_deeper(value, MAX_DEPTH):
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


def _json_response(value: Any, *, status: int = 200) -> HttpResponse:
    return HttpResponse(status=status, body=orjson.dumps(value))
