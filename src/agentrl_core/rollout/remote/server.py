"""One serving member as a sampler sees it: its requests, its load, and whether it is lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson

from agentrl_core.errors import ClaimLostError, RequestError, RunError, ServerLostError
from agentrl_core.http.backoff import Backoff, RetryPolicy, TransientError
from agentrl_core.http.server_client import ExchangeError, ServerClient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.api.members import Member

_CONNECT_S = 5.0
_SILENCE_S = 60.0
"""Longest wait for the reply to a short request. A close waits until aborted calls have ended and finished calls are
stored."""
_GENERATION_S = 600.0
"""Longest wait for a reply to token ids, as for calls of agents."""
_MOST_CONNECTIONS = 4096
"""Most requests at once: as many token-level calls as there are."""
_MOST_BYTES = 1 << 30
"""Largest reply: the interactions of a record of several million tokens."""
_RETRIES = RetryPolicy(max_retries=2, backoff=Backoff(first_s=0.2))
_OK = 200
_KEY = frozenset({401, 403})
_AWAY = frozenset({502, 503, 504})
"""Statuses by which a proxy, or the server itself, says that the server cannot answer."""
_STRANGER = frozenset({"other_run", "unknown_url"})
"""Codes of a server that is not the member: another one took the address."""


class Server:
    """A serving member of the run; used on the agents' event loop alone."""

    def __init__(self, member: Member, admin_key: str) -> None:
        self.member = member
        self.lost = asyncio.Event()
        """Set when the member has left the run, or was declared lost."""
        self.is_down = False
        """Whether the last request got no answer; such a server is asked last."""
        self.sessions = 0
        """Number of sessions that this process has open there, or is opening."""
        self.unclosed: set[str] = set()
        """Records whose sessions could not be closed, because the server was out of reach."""
        self._others = 0
        self._admin = _bearer(admin_key)
        self._client = ServerClient(
            member.url, connect_timeout_s=_CONNECT_S, retries=0, max_connections=_MOST_CONNECTIONS
        )

    def __str__(self) -> str:
        return f"{self.member.name} at {self.member.url}"

    @property
    def load(self) -> int:
        """Number of its open sessions: those of this process, and those of others when it last said so."""
        return self.sessions + self._others

    async def open_session(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Open a record's session; `ServerLostError` if the server cannot."""
        return self._told_load(await self._control_call("POST", "open_session", body))

    async def close_session(self, record_id: str) -> dict[str, Any]:
        """Close a record's session; `ServerLostError` if the server cannot, or does not know it any more."""
        return self._told_load(await self._control_call("POST", "close_session", {"record_id": record_id}))

    async def tokenizer(self) -> dict[str, str]:
        """Return the texts of the policy's tokenizer files by name."""
        files: dict[str, str] = (await self._control_call("GET", "tokenizer"))["files"]
        return files

    async def generate(self, api_key: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Sample one reply for a session.

        `RequestError` if it is refused, `ServerLostError` if no answer comes. Leaving this early aborts the generation.
        """
        try:
            # Never repeated: that would be a second reply in the record.
            status, data = await self._exchange("POST", "generate", body, _bearer(api_key), silence_s=_GENERATION_S)
        except ExchangeError as error:
            raise self._away(error) from error
        found = self._decoded(data)
        if status == _OK:
            return found
        code, message = _refusal(found)
        raise RequestError(status, code, message)

    def close(self) -> None:
        """End all connections."""
        self._client.close()

    async def _control_call(self, method: str, route: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the body of the reply to a request with the admin key, which is repeated if its connection fails."""

        async def attempt() -> tuple[int, bytes]:
            try:
                return await self._exchange(method, route, body, self._admin, silence_s=_SILENCE_S)
            except ExchangeError as error:
                if error.fault in {"connect", "broken"}:
                    raise TransientError(error) from error
                raise

        try:
            status, data = await _RETRIES.call(attempt)
        except ExchangeError as error:
            raise self._away(error) from error
        if status in _AWAY:
            raise self._away(f"it answered with status {status}")
        found = self._decoded(data)
        if status == _OK:
            self.is_down = False
            return found
        code, message = _refusal(found)
        if code == "member_gone":
            raise ClaimLostError(f"{self}: {message}")
        if code == "unknown_session":
            raise ServerLostError(f"{self}: {message}")
        if code in _STRANGER:
            raise self._away(message)
        advice = "; set gateway.admin_key_env to the same key for all members of the run" if status in _KEY else ""
        raise RunError(f"{self} refused {route} with status {status}: {message}{advice}")

    async def _exchange(
        self, method: str, route: str, body: Mapping[str, Any] | None, headers: Mapping[str, str], *, silence_s: float
    ) -> tuple[int, bytes]:
        """Return status and body of one reply."""
        if self.lost.is_set():
            raise ExchangeError("broken", "it has left the run or was declared lost")
        content = b"" if body is None else orjson.dumps(body)
        path = f"/rl/members/{route}"
        with await self._client.request(method, path, content, silence_s=silence_s, headers=headers) as reply:
            return reply.status, await reply.read(_MOST_BYTES)

    def _decoded(self, data: bytes) -> dict[str, Any]:
        try:
            found = orjson.loads(data)
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            raise RunError(f"{self}: the reply is not that of a gateway; expected the address of `agentrl serve`")
        return found

    def _away(self, why: str | ExchangeError) -> ServerLostError:
        self.is_down = True
        # An `ExchangeError` begins with the address, which is in this server's name, too.
        return ServerLostError(f"{self}: {str(why).removeprefix(f'{self._client.url}: ')}")

    def _told_load(self, reply: dict[str, Any]) -> dict[str, Any]:
        self._others = max(0, int(reply["open_sessions"]) - self.sessions)
        return reply


def _refusal(body: Mapping[str, Any]) -> tuple[str, str]:
    """Return code and message of a refusal in OpenAI's format."""
    error = body.get("error")
    found = error if isinstance(error, dict) else {}
    return str(found.get("code", "")), str(found.get("message", "no reason given"))


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
