"""Entry point of all HTTP requests: find the API or page by the URL, and the session by the URL's token or the key.

Requests from sockets and from inside the process both come through `Router.handle`. LLM calls go on to `answering`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from agentrl_core.errors import RequestError
from agentrl_core.gateway.answering import as_refusal
from agentrl_core.gateway.dialects.anthropic_messages import AnthropicMessages
from agentrl_core.gateway.dialects.model_list import describe_model, list_models
from agentrl_core.gateway.dialects.openai_chat import OpenAIChat
from agentrl_core.gateway.dialects.openai_completions import Completions
from agentrl_core.gateway.dialects.responses import OpenAIResponses
from agentrl_core.gateway.dialects.responses_output import ID_PREFIX
from agentrl_core.gateway.dialects.responses_stored import stored_input, stored_reply
from agentrl_core.gateway.serving.openapi import document
from agentrl_core.gateway.serving.web import (
    MAX_BODY_BYTES,
    HttpRequest,
    HttpResponse,
    MethodNotAllowedError,
    Page,
    decode_body,
    json_response,
    refused,
)
from agentrl_core.gateway.sessions import digest_of, key_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.gateway.admission import Admission
    from agentrl_core.gateway.answering import Answerer
    from agentrl_core.gateway.call_types import Dialect
    from agentrl_core.gateway.large_requests import LargeRequests
    from agentrl_core.gateway.metering import CpuMeter
    from agentrl_core.gateway.online.admin import Admin
    from agentrl_core.gateway.policy_calls import PolicyCalls
    from agentrl_core.gateway.sessions import Session, SessionBook

# Possessive quantifiers: with backtracking, a path of many /v1 prefixes would be tried again from each of them.
_PATH = re.compile(r"(?:/s/(?P<token>[^/]+))?+(?:/v1)*+(?P<route>/.*)?", re.DOTALL)
_TOKEN = re.compile(r"(/s/)[^/]+")
_LONGEST_QUOTE = 200
_RESPONSE = re.compile(r"/responses/[^/]+(?:/input_items)?")
_ACTION = re.compile(rf"/responses/(?!{ID_PREFIX})[^/]+|/models/.*:[^/]*", re.DOTALL)
"""Routes of POST that other servers have, such as `/responses/compact`: they look like a response's or a model's."""
_MESSAGES = "/messages"
_RESPONSES = "/responses"
_MODELS = "/models"


class Router:
    """Route table of the gateway; to add an LLM API, add its `Dialect` to `_dialects`.

    `pages` are routes of other parts (online sessions).
    """

    def __init__(
        self,
        *,
        sessions: SessionBook,
        admission: Admission,
        answerer: Answerer,
        calls: PolicyCalls,
        upstream_names: Sequence[str],
        large: LargeRequests,
        meter: CpuMeter,
        admin: Admin,
        pages: Mapping[str, Page],
    ) -> None:
        self._sessions = sessions
        self._admission = admission
        self._answerer = answerer
        self._calls = calls
        self._upstream_names = upstream_names
        self._large = large
        self._meter = meter
        self._admin = admin
        self._dialects: Mapping[str, Dialect] = {
            "/chat/completions": OpenAIChat(),
            "/completions": Completions(),
            _RESPONSES: OpenAIResponses(),
            _MESSAGES: AnthropicMessages(),
        }
        self._pages: Mapping[str, Page] = {
            "/health": Page(self._health),
            "/openapi.json": Page(self._openapi, "GET", self._session_or_admin),
            _MODELS: Page(self._models, "GET", self._session),
            f"{_MESSAGES}/count_tokens": Page(self._count_tokens, "POST", self._session),
            **pages,
        }
        self._model_page = Page(self._model, "GET", self._session)
        self._response_page = Page(self._response, "GET", self._session)

    def refuse_early(self, request: HttpRequest) -> HttpResponse | None:
        """Return the refusal of a request that its method, path or key already rule out, else None.

        The server asks this before it reads a body, so that unauthorized clients cannot make it hold large bodies.
        """
        route = _split(request.path)[1]
        try:
            if route in self._dialects:
                _check_method(request, "POST")
                self._session(request)
            else:
                self._page(request, route)
        except RequestError as refusal:
            return _error_response(route, refusal)
        return None

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Answer a request; every failure becomes an error response in the format of the API that was called."""
        response = await self._meter.run(self._handle(request))
        # A stream is generated after this returns, so its items are metered one by one.
        if isinstance(response.body, bytes):
            return response
        return attrs.evolve(response, body=self._meter.stream(response.body))

    async def _handle(self, request: HttpRequest) -> HttpResponse:
        token, route = _split(request.path)
        dialect = self._dialects.get(route)
        try:
            if dialect is not None:
                _check_method(request, "POST")
                session = self._sessions.authorize(token, request.headers, local=request.local)
                return await self._answerer.answer(dialect, request, session)
            return await self._page(request, route).answer(request)
        except Exception as error:  # noqa: BLE001 - the boundary: a client always gets an answer
            return _error_response(route, as_refusal(error))

    def _session(self, request: HttpRequest) -> Session:
        return self._sessions.authorize(_split(request.path)[0], request.headers, local=request.local)

    def _session_or_admin(self, request: HttpRequest) -> None:
        if not self._admin.has(key_of(request.headers) or ""):
            self._session(request)

    def _page(self, request: HttpRequest, route: str) -> Page:
        # Routes with an id are not in the table.
        page = self._pages.get(route)
        is_action = request.method == "POST" and _ACTION.fullmatch(route)
        if page is None and _RESPONSE.fullmatch(route) and not is_action:
            page = self._response_page
        if page is None and route.startswith(f"{_MODELS}/") and not is_action:
            page = self._model_page
        if page is None:
            raise _unknown(request, route)
        if page is self._response_page and request.method == "DELETE":
            raise MethodNotAllowedError(
                "a response is part of its episode's record and cannot be deleted", allowed=_methods(page.method)
            )
        _check_method(request, page.method)
        page.check(request)
        return page

    async def _health(self, _request: HttpRequest) -> HttpResponse:
        return json_response({"status": "ok"})

    async def _openapi(self, _request: HttpRequest) -> HttpResponse:
        return HttpResponse(body=document())

    async def _models(self, _request: HttpRequest) -> HttpResponse:
        return json_response(list_models(self._upstream_names))

    async def _model(self, request: HttpRequest) -> HttpResponse:
        name = _split(request.path)[1].removeprefix(f"{_MODELS}/")
        return json_response(describe_model(name, self._upstream_names))

    async def _count_tokens(self, request: HttpRequest) -> HttpResponse:
        """Return the token count of the prompt that the engine would see; nothing is sampled or stored."""
        session = self._session(request)
        await self._admission.ready(session)
        dialect = AnthropicMessages()

        def count() -> int:
            parsed = dialect.parse_count(decode_body(request.take_body()), request.headers)
            (prompt,) = self._calls.prompts(session, self._answerer.without_hosted_tools(parsed))
            return len(prompt.ids)

        try:
            num_tokens = await self._large.run(session.record_id, len(request.body), count)
        except Exception as error:  # noqa: BLE001 - the boundary: a client always gets an answer
            return refused(dialect, self._answerer.refusal(error, session))
        return json_response({"input_tokens": num_tokens})

    async def _response(self, request: HttpRequest) -> HttpResponse:
        """Return an earlier response of the session, also as a stream, or its input items."""
        session = self._session(request)
        await self._admission.ready(session)
        response_id, _, items = _split(request.path)[1].removeprefix(f"{_RESPONSES}/").partition("/")
        if items:
            return json_response(stored_input(response_id, session.ledger))
        reply = stored_reply(response_id, request.query, session.ledger, self._calls.chat)
        return self._answerer.respond(self._dialects[_RESPONSES], reply)


def too_large(path: str) -> HttpResponse:
    """Build the refusal of a body over `MAX_BODY_BYTES`."""
    return refused_at(path, RequestError(413, "request_too_large", f"the body exceeds {MAX_BODY_BYTES} bytes"))


def refused_at(path: str, refusal: RequestError) -> HttpResponse:
    """Build the refusal of a request in the format of the API that its path belongs to."""
    return _error_response(_split(path)[1], refusal)


def client_of(path: str, headers: Mapping[str, str]) -> bytes:
    """Return a digest that identifies a request's client: of its key, else of the token in its URL."""
    return digest_of(key_of(headers) or _split(path)[0] or "")


def _split(path: str) -> tuple[str | None, str]:
    """Split a path into the session's token, None if it has none, and the route without `/v1`."""
    match = _PATH.fullmatch(path)
    return (match["token"], match["route"] or "/") if match else (None, path)


def _shown(route: str) -> str:
    """Return an unknown route, shortened and without a session's token, for an error message.

    The route may be a session's URL behind a wrong prefix, and the store keeps the errors that agents raise.
    """
    return _TOKEN.sub(r"\1…", route)[:_LONGEST_QUOTE]


def _unknown(request: HttpRequest, route: str) -> RequestError:
    message = (
        f"unknown URL: {request.method} {_shown(route)}; LLM calls are POST /v1/chat/completions, /v1/completions, "
        "/v1/responses and /v1/messages, and GET /v1/openapi.json describes all routes"
    )
    return RequestError(404, "unknown_url", message)


def _methods(method: str) -> str:
    """Return the methods of a route, for the header `Allow`: whatever can be read has HEAD, too."""
    return "GET, HEAD" if method == "GET" else method


def _check_method(request: HttpRequest, allowed: str) -> None:
    methods = _methods(allowed)
    if request.method not in methods.split(", "):
        raise MethodNotAllowedError(f"{request.method} is not allowed here; use {allowed}", allowed=methods)


def _error_response(route: str, refusal: RequestError) -> HttpResponse:
    """Build the refusal in the format of the API that the route belongs to: Anthropic's, else OpenAI's."""
    # OpenAI's format also for unknown URLs and pages.
    dialect: Dialect = AnthropicMessages() if route.startswith(_MESSAGES) else OpenAIChat()
    return refused(dialect, refusal)
