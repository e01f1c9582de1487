"""The injected `http_client` of episodes on serving members: notices calls that fail on the way to their server."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx2

from agentrl_core.gateway.serving.transport import hide_tokens
from agentrl_core.http.shared_client import SharedClient
from agentrl_core.http.tls_context import ssl_context

_TOKEN = re.compile(r"/s/([^/]+)")

_ON_THE_WAY = (httpx2.NetworkError, httpx2.RemoteProtocolError, httpx2.ConnectTimeout)
"""Failures of the connection. Other timeouts are the agent's own choice."""

_DIRECT = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}
"""Servers on this machine, which are never reached through the environment's proxy."""


class NoticingClient(SharedClient):
    """Shared client that calls `on_fault(token, what)` when a call of a session fails on the way to its server.

    The agent gets the failure as usual, and its SDK may try again.
    """

    def __init__(self, on_fault: Callable[[str, str], None]) -> None:
        hide_tokens()
        # Without limits: each episode may have calls of its own, and a connection that they share would be a queue.
        super().__init__(verify=ssl_context(), limits=httpx2.Limits(max_connections=None), mounts=_DIRECT)
        self._on_fault = on_fault

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request."""
        found = _TOKEN.search(request.url.path)
        if found is None:
            return await super().send(request, **options)
        with self._noticing(found[1]):
            response = await super().send(request, **options)
        if not response.is_closed and isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _NoticingStream(response.stream, lambda: self._noticing(found[1]))
        return response

    @contextlib.contextmanager
    def _noticing(self, token: str) -> Iterator[None]:
        try:
            yield
        except _ON_THE_WAY as error:
            self._on_fault(token, type(error).__name__)
            raise


class _NoticingStream(httpx2.AsyncByteStream):
    """Body of a streamed reply, whose connection may break after its head has come."""

    def __init__(self, stream: httpx2.AsyncByteStream, noticing: Callable[[], AbstractContextManager[None]]) -> None:
        self._stream, self._noticing = stream, noticing

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with self._noticing():
            async for piece in self._stream:
                yield piece

    async def aclose(self) -> None:
        """Stop reading; the server aborts the generation."""
        await self._stream.aclose()
