"""HTTP routes by which online agents open, end, reward and export sessions, compatible with AReaL's clients.

`POST /rl/start_session`, `/rl/end_session`, `/rl/set_reward`, `/export_trajectories`, `/grant_capacity`; and
`GET /rl/sessions`, which AReaL does not have.
"""

from __future__ import annotations

import asyncio
import math
import re
from typing import TYPE_CHECKING, Any, Literal

from agentrl_core.errors import RequestError
from agentrl_core.gateway.dialects.fields import Fields
from agentrl_core.gateway.dialects.shape import accepted, flag, number, one_of, text
from agentrl_core.gateway.online.admin import LEAST_KEY
from agentrl_core.gateway.online.leases import Claim, no_capacity
from agentrl_core.gateway.online.sessions import describe
from agentrl_core.gateway.online.trajectories import trajectories
from agentrl_core.gateway.serving.web import HttpRequest, HttpResponse, Page, decode_body, json_response
from agentrl_core.gateway.sessions import key_of, session_active, session_ended
from agentrl_core.types import Episode, Outcome, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentrl_core.gateway.dialects.shape import Schema
    from agentrl_core.gateway.online.admin import Admin
    from agentrl_core.gateway.online.leases import Leases
    from agentrl_core.gateway.online.sessions import OnlineSessions
    from agentrl_core.gateway.sessions import Session, SessionBook
    from agentrl_core.types import Task

_REFRESH_WAIT_S = 120.0
"""Longest wait of an agent for its next slot; AReaL's value."""

_LONGEST_TASK_ID = 500
_MOST_BYTES = 65_536
"""Largest body; these routes take a few short fields only."""

START_REQUEST = accepted(
    {"task_id": text("Name of the agent's task.", minLength=1, maxLength=_LONGEST_TASK_ID)},
    api_key=text("A key that the agent chooses.", minLength=LEAST_KEY),
)
REWARD_REQUEST = accepted(
    {"reward": number("A finite number.")},
    interaction_id=text("Id of the reply that is rewarded; the latest, if left out."),
    session_id=text("The session, which the admin key needs; with the session's own key it is ignored."),
    final=flag("Whether no more rewards follow.", default=None),
)
EXPORT_REQUEST = accepted(
    {"session_id": text("The session, as `/rl/start_session` returned it.", minLength=1)},
    discount=number("Factor per call by which a reward counts for earlier calls.", minimum=0, maximum=1),
    style=one_of("individual", "concat", about="Whether each row is one call or one conversation."),
    drop_retry_orphans=flag("Whether to leave out replies that the agent asked for again."),
)

_TLS = re.compile(r"(?:^|[,;\s]|proto=\"?)https(?=\"?(?:[,;\s]|$))", re.IGNORECASE)
"""Pattern of `X-Forwarded-Proto` and `Forwarded` headers for a request that used TLS to at least one proxy."""


class Control:
    """Routes of online sessions.

    `url()` is the address at which the gateway listens, `public_url` the one at which agents reach it, `version()` the
    current policy version.
    """

    def __init__(
        self,
        *,
        admin: Admin,
        sessions: SessionBook,
        online: OnlineSessions,
        leases: Leases,
        url: Callable[[], str],
        public_url: str | None,
        version: Callable[[], int],
    ) -> None:
        self._admin = admin
        self._sessions = sessions
        self._online = online
        self._leases = leases
        self._url = url
        self._public_url = public_url
        self._version = version

    def pages(self) -> Mapping[str, Page]:
        """Return the pages by route."""
        return {
            "/rl/start_session": Page(self._start, "POST", self._check_admin),
            "/rl/end_session": Page(self._end, "POST", self._check_session),
            "/rl/set_reward": Page(self._reward, "POST", self._check_either),
            "/rl/sessions": Page(self._list, "GET", self._check_admin),
            "/export_trajectories": Page(self._export, "POST", self._check_admin),
            "/grant_capacity": Page(self._grant, "POST", self._check_admin),
        }

    def _check_admin(self, request: HttpRequest) -> None:
        self._admin.check(request.headers)

    def _check_session(self, request: HttpRequest) -> None:
        self._sessions.authorize_online(request.headers)

    def _check_either(self, request: HttpRequest) -> None:
        if not self._admin.has(key_of(request.headers) or ""):
            self._check_session(request)

    async def _start(self, request: HttpRequest) -> HttpResponse:
        """Open a session for the first slot that training offers, else use up a granted session.

        In online training, a key that belongs to an open session ends that session and waits for the next slot, as in
        AReaL's online mode. Outside of it, such a key is refused, as by AReaL's proxy.
        """
        claim = self._claim(_fields(request, START_REQUEST))
        earlier = self._sessions.find_by_key(claim.api_key) if claim.api_key is not None else None
        again = earlier is not None and not earlier.closed
        if again and earlier is not None:
            if not self._leases.training or earlier.online is None:
                raise session_active()
            await self._online.end(earlier)
        # The end of its old session lets the scheduler offer another slot, so such an agent waits and gets no 429.
        lease = await self._leases.wait(claim, timeout_s=_REFRESH_WAIT_S) if again else self._leases.take(claim)
        if lease is not None:
            # The lease is taken; a client that disconnects must not cancel the future that the run completes.
            session = await asyncio.shield(asyncio.wrap_future(lease.opened))
            return self._opened(request, session, lease.task, is_eval=lease.is_eval)
        if not self._leases.take_grant():
            raise no_capacity()
        session = await self._online.open_granted(claim, version=self._version())
        return self._opened(request, session, None, is_eval=False)

    def _claim(self, fields: Fields) -> Claim:
        task_id, api_key = fields.text("task_id"), fields.text("api_key")
        if not task_id or len(task_id) > _LONGEST_TASK_ID:
            raise _wrong("task_id", f"a text of 1 to {_LONGEST_TASK_ID} characters that names the agent's task")
        if api_key is not None:
            if not (api_key.isascii() and api_key.isprintable() and " " not in api_key and len(api_key) >= LEAST_KEY):
                raise _wrong("api_key", f"at least {LEAST_KEY} ASCII characters without spaces")
            # With the admin key as a session's key, its agent could open and reward any session.
            if self._admin.has(api_key):
                raise _wrong("api_key", "another key than the admin key, which agents must not have")
        return Claim(task_id=task_id, api_key=api_key)

    def _opened(self, request: HttpRequest, session: Session, task: Task | None, *, is_eval: bool) -> HttpResponse:
        body: dict[str, Any] = {
            "session_id": session.record_id,
            "api_key": session.api_key,
            "base_url": self.base_url(request),
        }
        if task is not None:
            body |= {"task": {"id": task.id, "data": dict(task.data)}, "is_eval": is_eval}
        return json_response(body)

    def base_url(self, request: HttpRequest) -> str:
        """Return the address at which agents reach the gateway: the configured one, else that of this request.

        A proxy's header that it received the request by TLS is believed from any client. A client that forges it only
        gets an https address. To ignore a true one would make agents send their keys unencrypted.
        """
        if self._public_url:
            return self._public_url.rstrip("/")
        host = request.headers.get("host")
        if not host:
            return self._url()
        proxies = f"{request.headers.get('x-forwarded-proto', '')},{request.headers.get('forwarded', '')}"
        return f"{'https' if _TLS.search(proxies) else 'http'}://{host}"

    async def _end(self, request: HttpRequest) -> HttpResponse:
        count = await self._online.end(self._sessions.authorize_online(request.headers))
        return json_response({"interaction_count": count})

    async def _reward(self, request: HttpRequest) -> HttpResponse:
        """Set the reward of a call; with the admin key, `session_id` names the session, whose agent may be gone."""
        fields = _fields(request, REWARD_REQUEST)
        session_id, interaction_id = fields.text("session_id"), fields.text("interaction_id")
        value, final = fields.take("reward"), fields.take("final")
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise _wrong("reward", "a finite number")
        if not isinstance(final, bool | None):
            raise _wrong("final", "true if no more rewards follow, else false")
        if self._admin.has(key_of(request.headers) or ""):
            session = self._session(session_id)
        else:
            session = self._sessions.authorize_online(request.headers)
        await self._online.reward(session, float(value), interaction_id, final=final)
        return json_response({"message": "success"})

    async def _list(self, _request: HttpRequest) -> HttpResponse:
        # The counts of restored sessions are only known once their calls are loaded.
        sessions = self._sessions.online_sessions()
        for session in sessions:
            await self._online.load(session)
        return json_response({"sessions": [describe(session) for session in sessions], "waiting": self._leases.waiting})

    async def _grant(self, _request: HttpRequest) -> HttpResponse:
        return json_response({"capacity": self._leases.grant()})

    async def _export(self, request: HttpRequest) -> HttpResponse:
        """Wait until a session has ended, return its calls, and remove it."""
        fields = _fields(request, EXPORT_REQUEST)
        session_id, drop = fields.text("session_id"), fields.flag("drop_retry_orphans")
        discount = fields.number("discount")
        style = _style(fields.text("style"))
        session = self._session(session_id)
        online = session.online
        if online is None or online.owned:
            raise RequestError(409, "in_training", "the run trains on this session; view it with `agentrl trace show`")
        await online.until(lambda: online.over)
        taken = await self._online.close(session)
        if taken is None:
            raise session_ended()
        rewards, interactions = taken
        outcome, reason = (Outcome.SCORED, "") if rewards else (Outcome.REJECTED, "no_reward")
        # Shielded from a client's disconnect: the session is closed, so no later request could finish its record.
        await asyncio.shield(self._online.finish(session, outcome, reason=reason, rewards=rewards))
        record = Record(id=session.record_id, run_id="", task_id=online.task_id, group_id="", sample_index=0)
        rows = trajectories(
            Episode(record=record, interactions=interactions),
            rewards,
            discount=1.0 if discount is None else discount,
            style=style,
            drop_retry_orphans=drop,
        )
        return json_response({"session_id": session.record_id, "interactions": rows})

    def _session(self, session_id: str | None) -> Session:
        if not session_id:
            raise _wrong("session_id", "the session_id that /rl/start_session returned")
        session = self._sessions.online_session(session_id)
        if session is None:
            raise RequestError(
                410,
                "session_gone",
                "there is no such session: it was exported, has expired, or was never opened here",
                param="session_id",
            )
        return session


def _fields(request: HttpRequest, shape: Schema) -> Fields:
    return Fields(decode_body(request.take_body(), most_bytes=_MOST_BYTES), shape)


def _style(text: str | None) -> Literal["individual", "concat"]:
    if text in {None, "individual"}:
        return "individual"
    if text == "concat":
        return "concat"
    raise _wrong("style", "individual or concat")


def _wrong(param: str, expected: str) -> RequestError:
    return RequestError(400, "invalid_value", f"{param}: expected {expected}", param=param)
