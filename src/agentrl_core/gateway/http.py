"""Route HTTP requests to what answers them: one function for real sockets and for calls in process."""

from __future__ import annotations

import logging
import re
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import orjson

from agentrl_core.errors import AgentRLError, RequestError, RunError, UnservableError, UnstorableError
from agentrl_core.gateway.anthropic_messages import AnthropicMessages
from agentrl_core.gateway.completions import Completions
from agentrl_core.gateway.exchange import Delta, Reply
from agentrl_core.gateway.openai_chat import OpenAIChat
from agentrl_core.gateway.responses import OpenAIResponses
from agentrl_core.gateway.responses_stored import stored_input, stored_response, with_referenced_items
from agentrl_core.gateway.retries import Attempt, retry_key

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from agentrl_core.chat.replies import Piece
    from agentrl_core.gateway.calls import Call
    from agentrl_core.gateway.exchange import ChatRequest, Decode, Dialect
    from agentrl_core.gateway.service import PolicyService
    from agentrl_core.gateway.sessions import Session, SessionBook
    from agentrl_core.types import Chunk

MAX_BODY_BYTES = 16 * 2**20
"""Largest request body; a million tokens of text are about 4 MB."""

MAX_DEPTH = 100
"""Deepest nesting of a request's JSON: what a template, a parser and a store can take without a thought."""

_logger = logging.getLogger(__name__)
_PATH = re.compile(r"(?:/s/(?P<token>[^/]+))?(?P<prefix>(?:/v1)*)(?P<route>/.*)?")
_Page: TypeAlias = "Callable[[HttpRequest, str | None], Awaitable[HttpResponse]]"
_MESSAGES = "/messages"
_RESPONSES = "/responses"
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
        self._dialects: Mapping[str, Dialect] = {
            "/chat/completions": OpenAIChat(),
            "/completions": Completions(),
            _RESPONSES: OpenAIResponses(),
            _MESSAGES: AnthropicMessages(),
        }
        self._pages: Mapping[str, _Page] = {"/health": self._health, "/models": self._models}
        self._posts: Mapping[str, _Page] = {f"{_MESSAGES}/count_tokens": self._count_tokens}
        self.fatal: RunError | None = None
        """The failure of the engine or the store that no request can be blamed for; the first one.

        An engine that died or was closed and a store whose file takes no more writes fail every call, so
        nobody need try again. `UnservableError` and `UnstorableError` are about one call: only it fails.
        """

    def refuse_early(self, request: HttpRequest) -> HttpResponse | None:
        """Refuse a call that its method, path and headers already rule out; `request.body` is not looked at."""
        token, route = _split(request.path)
        if route not in self._dialects and route not in self._posts:
            return None
        try:
            _check_method(request, "POST")
            self._sessions.authorize(token, request.headers)
        except RequestError as refusal:
            return _error_response(route, refusal)
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
            return _error_response(route, as_refusal(error))

    def _route(self, request: HttpRequest, route: str) -> _Page:
        page = self._pages.get(route) or self._posts.get(route)
        if page is None and route.startswith(f"{_RESPONSES}/"):
            page = self._response
        if page is None:
            raise RequestError(404, "unknown_url", f"unknown URL: {request.method} {route}")
        if page == self._response and request.method == "DELETE":
            raise RequestError(
                405, "method_not_allowed", "a response is part of its episode's record and cannot be deleted"
            )
        _check_method(request, "POST" if route in self._posts else "GET")
        return page

    async def _health(self, _request: HttpRequest, _token: str | None) -> HttpResponse:
        return _json_response({"status": "ok"})

    async def _models(self, request: HttpRequest, token: str | None) -> HttpResponse:
        self._sessions.authorize(token, request.headers)
        model = {"id": "default", "object": "model", "created": 0, "owned_by": "agentrl"}
        model |= {"type": "model", "display_name": "default", "created_at": "1970-01-01T00:00:00Z"}  # Anthropic's words
        page = {"has_more": False, "first_id": "default", "last_id": "default"}
        return _json_response({"object": "list", "data": [model], **page})

    async def _count_tokens(self, request: HttpRequest, token: str | None) -> HttpResponse:
        """Count the prompt that the engine would see; nothing is sampled or stored."""
        session = self._sessions.authorize(token, request.headers)
        dialect = AnthropicMessages()
        try:
            (prompt,) = self._service.prompts(session, dialect.parse_count(_decode_body(request.body), request.headers))
        except Exception as error:  # noqa: BLE001 - the boundary: a client always gets an answer
            return _refused(dialect, self._refusal(error, session))
        return _json_response({"input_tokens": len(prompt.ids)})

    async def _response(self, request: HttpRequest, token: str | None) -> HttpResponse:
        """Show an earlier response, or the items that it answered."""
        session = self._sessions.authorize(token, request.headers)
        response_id, _, page = _split(request.path)[1].removeprefix(f"{_RESPONSES}/").partition("/")
        if not page:
            return _json_response(stored_response(response_id, session.ledger, self._service.chat))
        if page != "input_items":
            raise RequestError(404, "unknown_url", f"unknown URL: {request.method} {_RESPONSES}/…/{page}")
        return _json_response(stored_input(response_id, session.ledger))

    async def _chat(self, dialect: Dialect, request: HttpRequest, session: Session) -> HttpResponse:
        try:
            body = _decode_body(request.body)
            if isinstance(dialect, OpenAIResponses):
                body = with_referenced_items(body, session.ledger)
            parsed = dialect.parse(body, request.headers)
            attempt = await session.attempts.enter(retry_key(request))
            if attempt is not None and attempt.choices:  # the client asks again for what it has missed
                return self._answer(dialect, Reply(request=parsed, choices=attempt.choices))
            return await self._generate(dialect, session, parsed, attempt)
        except Exception as error:  # noqa: BLE001 - the boundary: a client always gets an answer
            refusal = self._refusal(error, session)
            return _refused(dialect, refusal)

    async def _generate(
        self, dialect: Dialect, session: Session, request: ChatRequest, attempt: Attempt | None
    ) -> HttpResponse:
        service = self._service
        call = service.begin(session, request, dialect.id_prefix)
        call.attempt = attempt
        if request.stream:
            return HttpResponse(headers=_EVENTS, body=self._stream(dialect, request, call))
        with session.attempts.running(attempt):
            reply = await service.complete(call)
        return self._answer(dialect, reply)

    def _answer(self, dialect: Dialect, reply: Reply) -> HttpResponse:
        """Send a reply that is there as a whole."""
        decode = self._service.chat.decode
        if not reply.request.stream:
            return _json_response(dialect.response(reply, decode))
        return HttpResponse(headers=_EVENTS, body=_replay(dialect, reply, decode))

    async def _stream(self, dialect: Dialect, request: ChatRequest, call: Call) -> AsyncGenerator[bytes, None]:
        service = self._service
        prompt_tokens = sum(len(generation.prompt.ids) for generation in call.generations[:: request.n])
        writer = dialect.writer(request, call.id, prompt_tokens, service.chat.decode)
        try:
            with call.session.attempts.running(call.attempt):
                yield writer.begin()
                async with aclosing(service.sample(call)) as chunks:
                    async for generation, chunk in chunks:
                        piece = generation.reader.feed(chunk.ids)
                        if data := writer.delta(_delta(generation.index, piece, chunk)):
                            yield data
                reply = await service.finish(call)
            rests = [writer.delta(_delta(item.index, item.reader.rest())) for item in call.generations]
            yield b"".join([*rests, writer.end(reply)])
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


def too_large(path: str) -> HttpResponse:
    """Refuse a body over `MAX_BODY_BYTES`."""
    refusal = RequestError(413, "request_too_large", f"the body exceeds {MAX_BODY_BYTES} bytes")
    return _error_response(_split(path)[1], refusal)


def _delta(index: int, piece: Piece, chunk: Chunk | None = None) -> Delta:
    return Delta(
        index=index,
        content=piece.content,
        reasoning=piece.reasoning,
        tool_calls=piece.tool_calls,
        ids=chunk.ids if chunk else (),
        logprobs=chunk.logprobs if chunk else (),
        top_logprobs=chunk.top_logprobs if chunk else (),
    )


async def _replay(dialect: Dialect, reply: Reply, decode: Decode) -> AsyncGenerator[bytes, None]:
    """Stream a reply that is there as a whole."""
    writer = dialect.writer(reply.request, reply.id, reply.usage.prompt_tokens, decode)
    yield writer.begin()
    for index, choice in enumerate(reply.choices):
        output = choice.interaction.output
        yield writer.delta(
            Delta(
                index=index,
                content=output.get("content") or "",
                reasoning=output.get("reasoning_content", ""),
                tool_calls=tuple(output.get("tool_calls", ())),
                ids=choice.interaction.output_ids,
                logprobs=choice.interaction.logprobs,
                top_logprobs=choice.top_logprobs,
            )
        )
    yield writer.end(reply)


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


def _error_response(route: str, refusal: RequestError) -> HttpResponse:
    """Refuse in the shape of the API that the route belongs to."""
    dialect: Dialect = AnthropicMessages() if route.startswith(_MESSAGES) else OpenAIChat()
    return _refused(dialect, refusal)


def _refused(dialect: Dialect, refusal: RequestError) -> HttpResponse:
    wait = refusal.retry_after_s
    after = () if wait is None else (("retry-after", f"{wait:g}"),)
    return HttpResponse(status=refusal.status, headers=(*_JSON, *after), body=orjson.dumps(dialect.error(refusal)))


def _json_response(value: Any, *, status: int = 200) -> HttpResponse:
    return HttpResponse(status=status, body=orjson.dumps(value))
