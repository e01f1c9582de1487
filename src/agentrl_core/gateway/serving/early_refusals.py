"""Build the refusal that the server writes to a connection before it closes it, below the level of routes."""

from __future__ import annotations

from typing import cast

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from agentrl_core.errors import RequestError
from agentrl_core.gateway.dialects.openai_replies import openai_error
from agentrl_core.gateway.serving.web import HttpResponse


def turned_away(status: int, code: str, message: str) -> HttpResponse:
    """Build a refusal in a format that both OpenAI's and Anthropic's clients read: the API called is not yet known."""
    # Both formats have an `error` object with type and message; Anthropic's clients also expect the outer `type`.
    body = orjson.dumps({"type": "error", **openai_error(RequestError(status, code, message))})
    return HttpResponse(status=status, body=body)


def last_response(response: HttpResponse) -> bytes:
    """Encode a non-streamed response with `connection: close`, as bytes for the socket."""
    body = cast("bytes", response.body)
    headers = (*response.headers, ("content-length", str(len(body))), ("connection", "close"))
    head = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return b"".join([STATUS_LINE[response.status], head.encode(), b"\r\n", body])
