"""One serving member as a sampler sees it: its requests, its load, and whether it is lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson

from agentrl_core.errors import ClaimLostError, RequestError, RunError, ServerLostError
from agentrl_core.http.server_client import ExchangeError, ServerClient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.api.members import Member

_CONNECT_S = 5.0
_SILENCE_S = 60.0
"""Longest wait for the reply to a short request. A close waits until aborted calls have ended and finished calls are
stored."""
_MOST_BYTES = 1 << 30
"""Largest reply: the interactions of a record of several million tokens."""
_OK = 200
_KEY = frozenset({401, 403})
_AWAY = frozenset({502, 503, 504})
"""Statuses by which a proxy, or the server itself, says that the server cannot answer."""
_STRANGER = frozenset({"other_run", "unknown_url"})
"""Codes of a server that is not the member: another one took the address."""
_MOST_CALLS = 4096
"""Most token-level calls at once."""


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
        authorization = _bearer(admin_key)
        # Every request may be repeated: a record's session is opened once, and closed once.
        self._control = ServerClient(
            member.url, headers=lambda: authorization, connect_timeout_s=_CONNECT_S, silence_s=_SILENCE_S
        )
        # A repeated generation would be a second reply in the record.
        self._calls = ServerClient(member.url, connect_timeout_s=_CONNECT_S, retries=0, max_connections=_MOST_CALLS)

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

    async def status(self) -> dict[str, Any]:
        """Return the server's run, policy version and number of open sessions; `ServerLostError` if it cannot tell."""
        return self._told_load(await self._control_call("GET", "status"))

    async def tokenizer(self) -> dict[str, str]:
        """Return the texts of the policy's tokenizer files by name."""
        files: dict[str, str] = (await self._control_call("GET", "tokenizer"))["files"]
        return files

    async def generate(self, api_key: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Sample one reply for a session.

        `RequestError` if it is refused, `ServerLostError` if no answer comes. Leaving this early aborts the generation.
        """
        try:
            status, data = await _exchange(self._calls, "POST", "generate", body, _bearer(api_key))
        except ExchangeError as error:
            raise self._away(str(error)) from error
        found = _decoded(self, data)
        if status == _OK:
            return found
        code, message = _refusal(found)
        raise RequestError(status, code, message)

    def close(self) -> None:
        """End all connections."""
        self._control.close()
        self._calls.close()

    async def _control_call(self, method: str, route: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the body of the reply to a request with the admin key."""
        try:
            status, data = await _exchange(self._control, method, route, body)
        except ExchangeError as error:
            raise self._away(str(error)) from error
        if status in _AWAY:
            raise self._away(f"it answered with status {status}")
        found = _decoded(self, data)
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

    def _away(self, why: str) -> ServerLostError:
        self.is_down = True
        return ServerLostError(f"{self}: {why}")

    def _told_load(self, reply: dict[str, Any]) -> dict[str, Any]:
        self._others = max(0, int(reply["open_sessions"]) - self.sessions)
        return reply


async def _exchange(
    client: ServerClient,
    method: str,
    route: str,
    body: Mapping[str, Any] | None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """Return status and body of one reply."""
    content = b"" if body is None else orjson.dumps(body)
    with await client.request(method, f"/rl/members/{route}", content, headers=headers) as reply:
        return reply.status, await reply.read(_MOST_BYTES)


def _decoded(server: Server, data: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise RunError(f"{server}: the reply is not that of a gateway; expected the address of `agentrl serve`")
    return found


def _refusal(body: Mapping[str, Any]) -> tuple[str, str]:
    """Return code and message of a refusal in OpenAI's format."""
    error = body.get("error")
    found = error if isinstance(error, dict) else {}
    return str(found.get("code", "")), str(found.get("message", "no reason given"))


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
