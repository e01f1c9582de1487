"""HTTP routes by which sampling members of the run open, use and close the sessions of their records.

`POST /rl/members/open_session`, `/rl/members/close_session` and `/rl/members/generate`; `GET /rl/members/status` and
`/rl/members/tokenizer`. All need the run's admin key, but `generate` the session's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.chat.tokenizer import TOKENIZER_FILES
from agentrl_core.errors import RequestError
from agentrl_core.gateway.dialects.fields import Fields, missing, wrong_type
from agentrl_core.gateway.dialects.shape import accepted, flag, integer, listed, number, text
from agentrl_core.gateway.members.wire import GENERATE_REQUEST, interaction_to, token_call_from
from agentrl_core.gateway.serving.web import HttpRequest, HttpResponse, Page, decode_body, json_response
from agentrl_core.types import Record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from agentrl_core.chat.facade import Chat
    from agentrl_core.config.sampling_sections import SamplingConfig
    from agentrl_core.errors import RunError
    from agentrl_core.gateway.call_types import ChatRequest, Reply
    from agentrl_core.gateway.dialects.shape import Schema
    from agentrl_core.gateway.members.sessions import MemberSessions
    from agentrl_core.gateway.online.admin import Admin
    from agentrl_core.gateway.sessions import Session, SessionBook

_MOST_BYTES = 65_536
"""Largest body of the routes that take a few short fields only."""
_LONGEST_ID = 200
_MOST_NUMBER = 2**63 - 1
_ID_PREFIX = "gen-"

OPEN_REQUEST = accepted(
    {
        "run_id": text("The run; another run's server refuses.", minLength=1, maxLength=_LONGEST_ID),
        "member_id": text("The sampling member.", minLength=1, maxLength=_LONGEST_ID),
        "record_id": text("The record; the same one again gets the same session.", minLength=1, maxLength=_LONGEST_ID),
        "group_id": text("The record's group.", minLength=1, maxLength=_LONGEST_ID),
        "seed_key": listed(integer(maximum=_MOST_NUMBER), "Numbers that the calls' seeds are mixed from.", maxItems=16),
    },
    is_eval=flag("Whether the record belongs to an evaluation."),
    temperature=number("Temperature in place of the run's.", minimum=0, maximum=1e6),
    top_p=number("Nucleus sampling in place of the run's.", exclusiveMinimum=0, maximum=1),
    top_k=integer("Number of tokens to sample from in place of the run's; 0: all."),
    max_tokens=integer("Limit of a reply in tokens, if the agent sets none.", minimum=1),
)
CLOSE_REQUEST = accepted({"record_id": text("The record.", minLength=1, maxLength=_LONGEST_ID)})


class MemberControl:
    """Routes of the sessions of sampling members.

    `base_url(request)` is the address at which agents reach the gateway, `sampling` the run's own, `ask` the gateway's.
    """

    def __init__(
        self,
        *,
        admin: Admin,
        sessions: SessionBook,
        members: MemberSessions,
        run_id: str,
        sampling: SamplingConfig,
        chat: Chat,
        base_url: Callable[[HttpRequest], str],
        version: Callable[[], int],
        fatal: Callable[[], RunError | None],
        ask: Callable[[Session, ChatRequest, str], Awaitable[Reply]],
    ) -> None:
        self._admin, self._sessions, self._members = admin, sessions, members
        self._run_id, self._sampling = run_id, sampling
        # Read now: the folder may be one policy version of many, which is deleted later.
        self._tokenizer_files = _read_files(chat.directory)
        self._base_url, self._version, self._fatal, self._ask = base_url, version, fatal, ask

    def pages(self) -> Mapping[str, Page]:
        """Return the pages by route."""
        return {
            "/rl/members/open_session": Page(self._open, "POST", self._check_admin),
            "/rl/members/close_session": Page(self._close, "POST", self._check_admin),
            "/rl/members/generate": Page(self._generate, "POST", self._session_of),
            "/rl/members/status": Page(self._status, "GET", self._check_admin),
            "/rl/members/tokenizer": Page(self._tokenizer, "GET", self._check_admin),
        }

    def _check_admin(self, request: HttpRequest) -> None:
        self._admin.check(request.headers)

    def _session_of(self, request: HttpRequest) -> Session:
        return self._sessions.authorize(None, request.headers, local=request.local)

    def _check_alive(self) -> None:
        """Raise `RequestError` (503) if the engine or the store has failed, so that no call could succeed."""
        if (fatal := self._fatal()) is not None:
            raise RequestError(503, "server_failed", f"this server has failed: {fatal}")

    async def _open(self, request: HttpRequest) -> HttpResponse:
        self._check_alive()
        fields = _fields(request, OPEN_REQUEST)
        run_id, member_id = _filled(fields, "run_id"), _filled(fields, "member_id")
        record_id, group_id, is_eval = _filled(fields, "record_id"), _filled(fields, "group_id"), fields.flag("is_eval")
        seed_key = fields.take("seed_key")
        if not isinstance(seed_key, list) or not all(map(_is_number, seed_key)):
            raise wrong_type("seed_key", "must be a list of integers from 0 to 2^63 - 1")
        if run_id != self._run_id:
            raise RequestError(409, "other_run", f"this gateway serves the run '{self._run_id}', not '{run_id[:100]}'")
        changed: dict[str, Any] = {
            **{name: fields.number(name) for name in ("temperature", "top_p")},
            **{name: fields.integer(name) for name in ("top_k", "max_tokens")},
        }
        sampling = attrs.evolve(self._sampling, **{name: value for name, value in changed.items() if value is not None})
        record = Record(id=record_id, run_id=run_id, task_id="", group_id=group_id, sample_index=0, is_eval=is_eval)
        session = await self._members.open(member_id, record, seed_key=tuple(seed_key), sampling=sampling)
        return json_response(
            {
                "base_url": f"{self._base_url(request)}/s/{session.token}",
                "api_key": session.api_key,
                "open_sessions": self._members.count,
            }
        )

    async def _close(self, request: HttpRequest) -> HttpResponse:
        """Close a session, and return its interactions: the sampler needs them to score the record.

        They come with the reply, not from the store: they are in memory here, and a read would double the store's load,
        which all members share, and would have to wait where replicas lag behind.
        """
        interactions, refusal = await self._members.close(_filled(_fields(request, CLOSE_REQUEST), "record_id"))
        # After the close, which may be what found the failure: its record must not be trusted.
        self._check_alive()
        return json_response(
            {
                "interactions": [interaction_to(interaction) for interaction in interactions],
                "refusal": refusal,
                "open_sessions": self._members.count,
            }
        )

    async def _generate(self, request: HttpRequest) -> HttpResponse:
        """Sample one reply to token ids, under the same rules as calls over OpenAI's API."""
        session = self._session_of(request)
        call = token_call_from(Fields(decode_body(request.take_body()), GENERATE_REQUEST))
        choice = (await self._ask(session, call, _ID_PREFIX)).first
        return json_response(
            {
                "interaction": interaction_to(choice.interaction),
                "prompt_tokens": choice.prompt_tokens,
                "finish_reason": choice.finish_reason,
            }
        )

    async def _status(self, _request: HttpRequest) -> HttpResponse:
        self._check_alive()
        status: dict[str, Any] = {
            "run_id": self._run_id,
            "version": self._version(),
            "open_sessions": self._members.count,
        }
        return json_response(status)

    async def _tokenizer(self, _request: HttpRequest) -> HttpResponse:
        """Return the texts of the policy's tokenizer files by name, for token-level workflows on hosts without them."""
        if not self._tokenizer_files:
            raise RequestError(404, "no_tokenizer", "this server's tokenizer was not read from a model directory")
        files = {name: content.decode() for name, content in self._tokenizer_files.items()}
        return json_response({"files": files})


def _read_files(directory: Path | None) -> Mapping[str, bytes]:
    """Return the tokenizer files of a model directory; none for a chat that was built from parts."""
    if directory is None:
        return {}
    return {name: (directory / name).read_bytes() for name in TOKENIZER_FILES if (directory / name).is_file()}


def _fields(request: HttpRequest, shape: Schema) -> Fields:
    return Fields(decode_body(request.take_body(), most_bytes=_MOST_BYTES), shape)


def _filled(fields: Fields, name: str) -> str:
    value = fields.text(name)
    if not value:
        raise missing(name)
    if len(value) > _LONGEST_ID:
        raise wrong_type(name, f"must have at most {_LONGEST_ID} characters")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_NUMBER
