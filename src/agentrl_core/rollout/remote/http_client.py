"""The injected `http_client` of episodes on serving members: notices calls that fail on the way to their server."""

from __future__ import annotations

import re
from collections.abc import Callable
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
        try:
            return await super().send(request, **options)
        except _ON_THE_WAY as error:
            if found := _TOKEN.search(request.url.path):
                self._on_fault(found[1], type(error).__name__)
            raise
