"""Route HTTP requests to what answers them: one function for real sockets and for calls in process."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from agentrl_core.errors import RequestError
from agentrl_core.gateway.answering import Answerer, as_refusal
from agentrl_core.gateway.anthropic_messages import AnthropicMessages
from agentrl_core.gateway.completions import Completions
from agentrl_core.gateway.openai_chat import OpenAIChat
from agentrl_core.gateway.responses import OpenAIResponses
from agentrl_core.gateway.responses_stored import stored_input, stored_response
from agentrl_core.gateway.web import (
    MAX_BODY_BYTES,
    HttpRequest,
    HttpResponse,
    decode_body,
    json_response,
    refused,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from agentrl_core.errors import RunError
    from agentrl_core.gateway.exchange import Dialect
    from agentrl_core.gateway.forwarding import Forwarder
    from agentrl_core.gateway.service import PolicyService
    from agentrl_core.gateway.sessions import SessionBook

_PATH = re.compile(r"(?:/s/(?P<token>[^/]+))?(?P<prefix>(?:/v1)*)(?P<route>/.*)?")
_Page: TypeAlias = "Callable[[HttpRequest, str | None], Awaitable[HttpResponse]]"
_MESSAGES = "/messages"
_RESPONSES = "/responses"


class Api:
    """All routes. Another API is one more `Dialect` in `_dialects`."""

    def __init__(self, sessions: SessionBook, service: PolicyService, forwarder: Forwarder) -> None:
        self._sessions = sessions
        self._service = service
        self._forwarder = forwarder
        self._answerer = Answerer(service, forwarder)
        self._dialects: Mapping[str, Dialect] = {
            "/chat/completions": OpenAIChat(),
            "/completions": Completions(),
            _RESPONSES: OpenAIResponses(),
            _MESSAGES: AnthropicMessages(),
        }
        self._pages: Mapping[str, _Page] = {"/health": self._health, "/models": self._models}
        self._posts: Mapping[str, _Page] = {f"{_MESSAGES}/count_tokens": self._count_tokens}

    @property
    def fatal(self) -> RunError | None:
        """What ended the engine or the store, if anything did."""
        return self._answerer.fatal

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
                return await self._answerer.answer(dialect, request, session)
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
        return json_response({"status": "ok"})

    async def _models(self, request: HttpRequest, token: str | None) -> HttpResponse:
        self._sessions.authorize(token, request.headers)
        model = {"id": "default", "object": "model", "created": 0, "owned_by": "agentrl"}
        model |= {"type": "model", "display_name": "default", "created_at": "1970-01-01T00:00:00Z"}  # Anthropic's words
        page = {"has_more": False, "first_id": "default", "last_id": "default"}
        return json_response({"object": "list", "data": [model], **page})

    async def _count_tokens(self, request: HttpRequest, token: str | None) -> HttpResponse:
        """Count the prompt that the engine would see; nothing is sampled or stored."""
        session = self._sessions.authorize(token, request.headers)
        dialect = AnthropicMessages()
        try:
            (prompt,) = self._service.prompts(session, dialect.parse_count(decode_body(request.body), request.headers))
        except Exception as error:  # noqa: BLE001 - the boundary: a client always gets an answer
            return refused(dialect, self._answerer.refusal(error, session))
        return json_response({"input_tokens": len(prompt.ids)})

    async def _response(self, request: HttpRequest, token: str | None) -> HttpResponse:
        """Show an earlier response, or the items that it answered."""
        session = self._sessions.authorize(token, request.headers)
        response_id, _, page = _split(request.path)[1].removeprefix(f"{_RESPONSES}/").partition("/")
        if not page:
            return json_response(stored_response(response_id, session.ledger, self._service.chat))
        if page != "input_items":
            raise RequestError(404, "unknown_url", f"unknown URL: {request.method} {_RESPONSES}/…/{page}")
        return json_response(stored_input(response_id, session.ledger))


def too_large(path: str) -> HttpResponse:
    """Refuse a body over `MAX_BODY_BYTES`."""
    refusal = RequestError(413, "request_too_large", f"the body exceeds {MAX_BODY_BYTES} bytes")
    return _error_response(_split(path)[1], refusal)


def _split(path: str) -> tuple[str | None, str]:
    """Return the session's token in a path, if there is one, and the route behind it."""
    match = _PATH.fullmatch(path)
    return (match["token"], match["route"] or "/") if match else (None, path)


def _check_method(request: HttpRequest, allowed: str) -> None:
    if request.method != allowed:
        raise RequestError(405, "method_not_allowed", f"{request.method} is not allowed here; use {allowed}")


def _error_response(route: str, refusal: RequestError) -> HttpResponse:
    """Refuse in the shape of the API that the route belongs to."""
    dialect: Dialect = AnthropicMessages() if route.startswith(_MESSAGES) else OpenAIChat()
    return refused(dialect, refusal)
