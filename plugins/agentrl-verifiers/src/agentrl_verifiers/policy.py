"""Connection of an environment's agents to the policy: one server for all episodes, whose clients note reply ids."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from verifiers.v1.clients.base import build_async_httpx
from verifiers.v1.clients.eval import EvalClient
from verifiers.v1.configs.client import BaseClientConfig, EvalClientConfig, resolve_headers
from verifiers.v1.interception.server import InterceptionServer

if TYPE_CHECKING:
    import httpx
    from verifiers.v1.clients.client import RelayReply

KEY_HEADER = "x-agentrl-episode-key"
"""Header in the client's config that holds the episode's key; it never leaves this process."""


class PolicyServer(InterceptionServer):
    """verifiers' server between agents and model, for episodes that each have a model address of their own.

    Its base class keeps a client for each address for ever. Here all clients share one connection pool, and each lives
    as long as its rollout.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.pool = build_async_httpx(EvalClientConfig())
        self.replies: dict[str, list[str]] = {}
        """Trace id -> ids of the replies to its calls, in order; `take_replies` removes them."""

    def _client(self, config: BaseClientConfig) -> PolicyClient:
        return PolicyClient(config, self.pool, self.replies)

    def register(self, session: Any) -> tuple[str, str]:
        """Register a rollout; the calls of a seat that does not train are marked as such."""
        secrets = super().register(session)
        agent = session.trace.agent
        session.client.trainable = agent is None or agent.trainable
        return secrets

    async def stop(self) -> None:
        """Stop the server and close the connections."""
        await super().stop()
        await self.pool.aclose()


class PolicyClient(EvalClient):
    """Sends the calls of one rollout to its episode's address."""

    def __init__(self, config: BaseClientConfig, pool: httpx.AsyncClient, replies: dict[str, list[str]]) -> None:
        headers = resolve_headers(config)
        self.base_url = config.base_url
        self.api_key = headers.pop(KEY_HEADER)
        self.headers = headers
        self.client = pool
        self.trainable = True
        self._replies = replies

    def _headers(self, dialect: Any, headers: Mapping[str, str] | None, session_id: str | None) -> httpx.Headers:
        sent = super()._headers(dialect, headers, session_id)
        if not self.trainable:
            sent["x-agentrl-trainable"] = "false"
        return sent

    async def get_response(self, dialect: Any, body: dict[str, Any], sampling: Any, **more: Any) -> Any:
        """Return the reply to a call, and note its id."""
        response = await super().get_response(dialect, body, sampling, **more)
        self._note(more.get("session_id"), (response.raw or {}).get("id"))
        return response

    async def relay(
        self,
        dialect: Any,
        body: dict[str, Any],
        session_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> RelayReply:
        """Pass a streamed reply on, and note its id."""
        reply = await super().relay(dialect, body, session_id, headers)
        reply.chunks = self._noting(reply.chunks, session_id)
        return reply

    async def _noting(self, chunks: AsyncIterator[bytes], session_id: str | None) -> AsyncIterator[bytes]:
        noted = False
        async for chunk in chunks:
            if not noted and (found := _id_in(chunk)):
                self._note(session_id, found)
                noted = True
            yield chunk

    def _note(self, session_id: str | None, reply_id: Any) -> None:
        if session_id and isinstance(reply_id, str):
            self._replies.setdefault(session_id, []).append(reply_id)


def _id_in(event: bytes) -> str | None:
    """Return the id of the reply that a server-sent event belongs to, of any of the three APIs."""
    for line in event.splitlines():
        if line.startswith(b"data:") and line[5:].strip().startswith(b"{"):
            data = json.loads(line[5:])
            for holder in (data, data.get("response"), data.get("message")):
                if isinstance(holder, dict) and isinstance(holder.get("id"), str):
                    return str(holder["id"])
    return None
