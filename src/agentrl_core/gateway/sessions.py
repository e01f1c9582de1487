"""Open, find and end sessions, which say what record a call belongs to and whether it may still call.

An episode's `base_url` carries a short-lived token and its `api_key` is a second secret; both die with the
episode. Secrets are looked up by their digest and compared in constant time; they are never shown.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

import attrs

from agentrl_core.errors import RequestError
from agentrl_core.gateway.ledger import Ledger
from agentrl_core.gateway.retries import Attempts

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Mapping

    from agentrl_core.gateway.sampling import SamplingPolicy
    from agentrl_core.types import Interaction, Record

_REMEMBERED_ENDS = 100_000
"""Secrets of ended sessions that are still answered by 410 (gone) in place of 401 (unknown)."""

_LONGEST_REFUSAL = 1000

_KEY_PREFIX = "sk-agentrl-"
_SECRET = re.compile(rf"(\b{_KEY_PREFIX}|://[\w.:\[\]-]+/s/)[\w-]+")


@attrs.define(kw_only=True, eq=False)
class Session:
    """The gateway's live handle of a record."""

    record_id: str
    base_url: str = attrs.field(repr=False)
    """Without /v1; carries the session's token."""
    api_key: str = attrs.field(repr=False)
    token: str = attrs.field(repr=False)
    group_id: str
    policy: SamplingPolicy = attrs.field(repr=False)
    seed_key: tuple[int, ...] = attrs.field(repr=False)
    closed: bool = False
    ledger: Ledger = attrs.field(factory=Ledger, init=False, repr=False)
    attempts: Attempts = attrs.field(factory=Attempts, init=False, repr=False)
    lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)
    """Guards what follows, and the ledger; held for moments only, never across an await."""
    num_calls: int = attrs.field(default=0, init=False)
    """Calls begun."""
    num_finished: int = attrs.field(default=0, init=False)
    running: set[str] = attrs.field(factory=set, init=False, repr=False)
    """Request ids in the engine."""
    writes: set[concurrent.futures.Future[None]] = attrs.field(factory=set, init=False, repr=False)
    """Finished calls on their way to the store."""
    interactions: list[Interaction] = attrs.field(factory=list, init=False, repr=False)
    """Stored calls."""
    refusal: str = attrs.field(default="", init=False)
    """The last call that was refused or failed: HTTP status, code and message; empty if none was."""

    def remember_refusal(self, error: RequestError) -> None:
        """Keep why a call got no reply; one that only came too late, after the episode, says nothing about it."""
        if not self.closed:
            self.refusal = f"{error.status} {error.code}: {error}"[:_LONGEST_REFUSAL]

    def check_open(self) -> None:
        """Refuse calls of an ended episode."""
        if self.closed:
            raise session_ended()


class SessionBook:
    """All sessions, by the digests of their secrets."""

    def __init__(self) -> None:
        self._by_token: dict[bytes, Session] = {}
        self._by_key: dict[bytes, Session] = {}
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, record: Record, *, url: str, policy: SamplingPolicy, seed_key: tuple[int, ...]) -> Session:
        """Start a session with fresh secrets."""
        token = secrets.token_urlsafe(16)
        session = Session(
            record_id=record.id,
            base_url=f"{url}/s/{token}",
            api_key=f"{_KEY_PREFIX}{secrets.token_urlsafe(32)}",
            token=token,
            group_id=record.group_id,
            policy=policy,
            seed_key=seed_key,
        )
        with self._lock:
            self._by_token[_digest(token)] = session
            self._by_key[_digest(session.api_key)] = session
        return session

    def end(self, session: Session) -> None:
        """Forget a session; its secrets are answered by 410 from now on."""
        with self._lock:
            for book, secret in (self._by_token, session.token), (self._by_key, session.api_key):
                digest = _digest(secret)
                book.pop(digest, None)
                self._ended[digest] = None
            while len(self._ended) > _REMEMBERED_ENDS:
                self._ended.popitem(last=False)

    def authorize(self, token: str | None, headers: Mapping[str, str]) -> Session:
        """Find the session of a call: by the token in its path, else by its key.

        A key that is no session's is ignored beside a valid path (agents must send something); the key of
        another session is refused.
        """
        key = _key_of(headers)
        if token is None:
            return self._find(self._by_key, key)
        session = self._find(self._by_token, token)
        if key is not None and not hmac.compare_digest(key.encode(), session.api_key.encode()):
            digest = _digest(key)
            if digest in self._by_key or digest in self._ended:
                raise RequestError(403, "wrong_session", "this API key belongs to another session than the URL")
        return session

    def _find(self, book: Mapping[bytes, Session], secret: str | None) -> Session:
        if secret is None:
            raise RequestError(
                401,
                "invalid_api_key",
                "no session: use the base_url that the workflow was given, or send its api_key as Bearer or x-api-key",
            )
        digest = _digest(secret)
        session = book.get(digest)
        if session is not None:
            session.check_open()
            return session
        if digest in self._ended:
            raise session_ended()
        raise RequestError(401, "invalid_api_key", "unknown session: its URL or API key was never issued by this run")


def without_secrets(text: str) -> str:
    """Take the keys and addresses of all sessions out of a text: what agents raise may quote them."""
    return _SECRET.sub(r"\1…", text)


def session_ended() -> RequestError:
    """Make the refusal of a call that comes after its episode."""
    return RequestError(
        410,
        "session_ended",
        "this episode has ended; its session takes no more calls. Is one client kept for all episodes? "
        "Make one in each, or client.with_options(base_url=…, api_key=…)",
    )


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _key_of(headers: Mapping[str, str]) -> str | None:
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    return headers.get("x-api-key") or None
