"""Open, find and end sessions, which say what record a call belongs to and whether it may still call.

An episode's `base_url` carries a short-lived token and its `api_key` is a second secret; both die with the
episode. Secrets are looked up by their digest and compared in constant time; they are never shown. The token in
the URL, which logs may quote, is good on this machine only.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import re
import secrets
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

import attrs

from agentrl_core.errors import RequestError
from agentrl_core.gateway.history.ledger import Ledger
from agentrl_core.gateway.quotas import CallRate
from agentrl_core.gateway.retries import Attempts

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Iterable, Mapping

    from agentrl_core.api.stores import SessionRow
    from agentrl_core.gateway.online.visit import Visit
    from agentrl_core.gateway.sampling import SamplingPolicy
    from agentrl_core.types import Interaction, Record

_REMEMBERED_ENDS = 100_000
"""Secrets of ended sessions that are still answered by 410 (gone) in place of 401 (unknown)."""

_LONGEST_REFUSAL = 1000

_KEY_PREFIX = "sk-agentrl-"
_SECRET = re.compile(rf"(\b{_KEY_PREFIX}|://[\w.:\[\]-]+(?:/v1)*/s/)[\w-]+")


@attrs.define(kw_only=True, eq=False)
class Session:
    """The gateway's live handle of a record."""

    record_id: str
    base_url: str = attrs.field(repr=False)
    """Without /v1; carries the session's token."""
    api_key: str = attrs.field(repr=False)
    token: str = attrs.field(repr=False)
    """Like the key and the URL, empty where another process opened the session: nobody here knows them."""
    key_hash: bytes = attrs.field(repr=False)
    token_hash: bytes = attrs.field(repr=False)
    group_id: str
    policy: SamplingPolicy = attrs.field(repr=False)
    seed_key: tuple[int, ...] = attrs.field(repr=False)
    visit: Visit | None = attrs.field(default=None, repr=False)
    """Of a session that an agent from elsewhere opened."""
    forgotten: bool = attrs.field(default=False, repr=False)
    """Whether its calls so far are only in the store: another process answered them."""
    closed: bool = False
    used_at: float = attrs.field(factory=time.monotonic, init=False, repr=False)
    """When the last call came."""
    ledger: Ledger = attrs.field(factory=Ledger, init=False, repr=False)
    attempts: Attempts = attrs.field(factory=Attempts, init=False, repr=False)
    rate: CallRate = attrs.field(factory=CallRate, init=False, repr=False)
    lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)
    """Guards what follows, and the ledger; held for moments only, never across an await."""
    twin: int = attrs.field(default=0, init=False, repr=False)
    """Number among the open sessions with its seed key, so that no two replies in the engine have one id."""
    num_calls: int = attrs.field(default=0, init=False)
    """Calls to the policy begun."""
    num_forwarded: int = attrs.field(default=0, init=False)
    """Calls to upstreams begun."""
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
    """All sessions, by the digests of their secrets.

    `url_tokens`: whether the token in a URL is enough for a caller on this machine.
    """

    def __init__(self, *, url_tokens: bool = True) -> None:
        self._url_tokens = url_tokens
        self._by_token: dict[bytes, Session] = {}
        self._by_key: dict[bytes, Session] = {}
        self._by_record: dict[str, Session] = {}
        """Those of agents from elsewhere."""
        self._twins: dict[tuple[int, ...], dict[int, Session]] = {}
        """The open sessions of one seed key, by their numbers."""
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()

    def open(
        self,
        record: Record,
        *,
        url: str,
        policy: SamplingPolicy,
        seed_key: tuple[int, ...],
        api_key: str | None = None,
        visit: Visit | None = None,
    ) -> Session:
        """Start a session with fresh secrets, or the client's own key; `RequestError` (409) where that is in use."""
        token = secrets.token_urlsafe(16)
        api_key = api_key or f"{_KEY_PREFIX}{secrets.token_urlsafe(32)}"
        session = Session(
            record_id=record.id,
            base_url=f"{url}/s/{token}",
            api_key=api_key,
            token=token,
            key_hash=digest_of(api_key),
            token_hash=digest_of(token),
            group_id=record.group_id,
            policy=policy,
            seed_key=seed_key,
            visit=visit,
        )
        self._add(session)
        return session

    def restore(self, row: SessionRow, *, policy: SamplingPolicy, visit: Visit) -> Session:
        """Go on with a session that another process opened."""
        session = Session(
            record_id=row.record_id,
            base_url="",
            api_key="",
            token="",
            key_hash=row.key_hash,
            token_hash=row.token_hash,
            group_id=row.group_id,
            policy=policy,
            seed_key=row.seed_key,
            visit=visit,
            forgotten=True,
            closed=row.state != "open",
        )
        self._add(session)
        return session

    def end(self, session: Session) -> None:
        """Forget a session; its secrets are answered by 410 from now on."""
        with self._lock:
            self._by_record.pop(session.record_id, None)
            self._forget_twin(session)
            for book, digest in (self._by_token, session.token_hash), (self._by_key, session.key_hash):
                if book.get(digest) is session:  # its key may be another one's by now
                    del book[digest]
                    self._ended[digest] = None
            self._forget_ends()

    def remember_ends(self, digests: Iterable[bytes]) -> None:
        """Answer these secrets by 410."""
        with self._lock:
            self._ended.update(dict.fromkeys(digests))
            self._forget_ends()

    def holder(self, api_key: str) -> Session | None:
        """Return the session that an API key belongs to."""
        return self._by_key.get(digest_of(api_key))

    def visits(self) -> list[Session]:
        """Return the sessions that agents from elsewhere opened, oldest first."""
        with self._lock:
            return list(self._by_record.values())

    def visit_of(self, record_id: str) -> Session | None:
        """Return such a session by its id, which is that of its record."""
        return self._by_record.get(record_id)

    def of_key(self, headers: Mapping[str, str]) -> Session:
        """Find the session of a key, one too that takes no more calls."""
        session = self._find(self._by_key, key_of(headers))
        if session.visit is None:
            raise RequestError(403, "not_yours", "this session belongs to the run that opened it: that ends it")
        return session

    def authorize(self, token: str | None, headers: Mapping[str, str], *, local: bool = True) -> Session:
        """Find the session of a call: by the token in its path, else by its key, the only way from another machine.

        A key that is no session's is ignored beside a valid path (agents must send something); the key of
        another session is refused.
        """
        key = key_of(headers)
        if token is not None and key is None and not (local and self._url_tokens):
            raise RequestError(
                401,
                "invalid_api_key",
                "the URL alone does not do from another machine, through a proxy or with gateway.url_tokens: false; "
                "send the session's api_key as Bearer or x-api-key",
            )
        if token is None or not (local and self._url_tokens):
            session = self._find(self._by_key, key)
            if token is not None and not hmac.compare_digest(digest_of(token), session.token_hash):
                raise _wrong_session()
        else:
            session = self._find(self._by_token, token)
            digest = session.key_hash if key is None else digest_of(key)
            others = not hmac.compare_digest(digest, session.key_hash)
            if others and (digest in self._by_key or digest in self._ended):
                raise _wrong_session()
        session.check_open()
        session.used_at = time.monotonic()
        return session

    def _add(self, session: Session) -> None:
        with self._lock:
            holder = self._by_key.get(session.key_hash)
            if holder is not None and not holder.closed:
                raise session_active()
            twins = self._twins.setdefault(session.seed_key, {})
            session.twin = next(number for number in itertools.count() if number not in twins)
            twins[session.twin] = session
            self._by_token[session.token_hash] = session
            self._by_key[session.key_hash] = session
            self._ended.pop(session.key_hash, None)
            if session.visit is not None:
                self._by_record[session.record_id] = session

    def _forget_twin(self, session: Session) -> None:
        twins = self._twins.get(session.seed_key, {})
        if twins.get(session.twin) is session:
            del twins[session.twin]
        if not twins:
            self._twins.pop(session.seed_key, None)

    def _forget_ends(self) -> None:
        while len(self._ended) > _REMEMBERED_ENDS:
            self._ended.popitem(last=False)

    def _find(self, book: Mapping[bytes, Session], secret: str | None) -> Session:
        if secret is None:
            raise RequestError(
                401,
                "invalid_api_key",
                "no session: use the base_url that the workflow was given, or send its api_key as Bearer or x-api-key",
            )
        digest = digest_of(secret)
        session = book.get(digest)
        if session is not None:
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


def session_active() -> RequestError:
    """Make the refusal of a key that is in use."""
    return RequestError(
        409, "session_active", "this api_key belongs to a session that is open; end that first, or use another key"
    )


def digest_of(secret: str) -> bytes:
    """Return what stands for a secret wherever it is kept."""
    return hashlib.sha256(secret.encode()).digest()


def key_of(headers: Mapping[str, str]) -> str | None:
    """Return the key that a request carries, in either of the two headers."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    return headers.get("x-api-key") or None


def _wrong_session() -> RequestError:
    return RequestError(
        403,
        "wrong_session",
        "this API key belongs to another session than the URL; use the base_url and the api_key of the same episode",
    )
