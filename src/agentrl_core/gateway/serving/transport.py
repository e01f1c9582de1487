"""HTTP client that agents share: its calls to the gateway stay in process, calls to other hosts use sockets as usual.

An SDK call over a socket costs more than twice the CPU time of the same call in process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

import attrs
import httpx2

from agentrl_core.gateway.serving.routes import too_large
from agentrl_core.gateway.serving.web import MAX_BODY_BYTES, HttpRequest, HttpResponse
from agentrl_core.gateway.sessions import without_secrets
from agentrl_core.http.shared_client import SharedClient
from agentrl_core.http.tls_context import ssl_context

Handle = Callable[[HttpRequest], Awaitable[HttpResponse]]


class InProcessTransport(httpx2.AsyncBaseTransport):
    """httpx transport that passes requests to the gateway without a socket, on the caller's event loop."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request to the gateway; cancelling it aborts the generation.

        `ReadTimeout` after the client's read timeout.
        """
        body = await request.aread()
        # httpx leaves timeouts to the transport. There is no connection here, so the read timeout covers the answer.
        timeout_s: float | None = request.extensions.get("timeout", {}).get("read")
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._answer(request, body)
        except TimeoutError as error:
            raise httpx2.ReadTimeout(f"no reply within {timeout_s:g} s", request=request) from error
        if isinstance(response.body, bytes):
            return httpx2.Response(response.status, headers=response.headers, content=response.body)
        return httpx2.Response(response.status, headers=response.headers, stream=_Stream(response.body, timeout_s))

    async def _answer(self, request: httpx2.Request, body: bytes) -> HttpResponse:
        # The same limit as over a socket, where the server checks it.
        if len(body) > MAX_BODY_BYTES:
            return too_large(request.url.path)
        headers = {name.lower(): value for name, value in request.headers.items()}
        url = request.url
        response = await self._handle(
            HttpRequest(
                method=request.method, path=url.path, query=url.query.decode("latin-1"), headers=headers, body=body
            )
        )
        # A response to HEAD has no body; over a socket, uvicorn leaves it out.
        return attrs.evolve(response, body=b"") if request.method == "HEAD" else response


class _Stream(httpx2.AsyncByteStream):
    """Streamed response body; the client's read timeout holds for each piece."""

    def __init__(self, body: AsyncGenerator[bytes, None], timeout_s: float | None) -> None:
        self._body = body
        self._timeout_s = timeout_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async with asyncio.timeout(self._timeout_s):
                    piece = await anext(self._body)
            except StopAsyncIteration:
                return
            except TimeoutError as error:
                raise httpx2.ReadTimeout(f"nothing new within {self._timeout_s:g} s") from error
            yield piece

    async def aclose(self) -> None:
        """Stop reading; a running generation is aborted."""
        await self._body.aclose()


class _WithoutTokens(logging.Filter):
    """Log filter that removes sessions' tokens: httpx2 logs the URL of every request."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = without_secrets(record.getMessage()), ()
        return True


_WITHOUT_TOKENS = _WithoutTokens()


def hide_tokens() -> None:
    """Keep the tokens of sessions out of what httpx2 logs; for every client whose requests go to a gateway."""
    # The filter is one object, which a logger adds only once, even for many clients.
    logging.getLogger("httpx2").addFilter(_WITHOUT_TOKENS)


class InProcessClient(SharedClient):
    """Shared client that reaches the gateway without a socket, and other hosts over the network."""

    def __init__(self, handle: Handle, url: str) -> None:
        hide_tokens()
        super().__init__(
            mounts={url.replace("http://", "all://"): InProcessTransport(handle)},
            verify=ssl_context(),
        )
