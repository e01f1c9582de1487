"""Keep the live sessions and authenticate calls: find a call's session by the token in its URL or by its API key.

A session ties calls to one record. Its `base_url` contains a short-lived token, and its `api_key` is a second secret;
both end with the episode. Secrets are looked up by their digest, compared in constant time and never shown. The token
is valid on this machine only, because logs may quote URLs.
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
from agentrl_core.gateway.admission import CallRate
from agentrl_core.gateway.history.compacted import CompactedHistories
from agentrl_core.gateway.history.ledger import Ledger
from agentrl_core.gateway.retries import Attempts

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Callable, Iterable, Mapping

    from agentrl_core.api.stores import SessionRow
    from agentrl_core.gateway.online.session import OnlineSession
    from agentrl_core.gateway.sampling_parameters import SamplingPolicy
    from agentrl_core.types import Interaction, Record

_REMEMBERED_ENDS = 100_000
"""Number of ended sessions' secrets that still get 410 (gone) instead of 401 (unknown)."""

_LONGEST_REFUSAL = 1000

_KEY_PREFIX = "sk-agentrl-"
# Keys are recognised by their prefix, URL tokens by their place in a URL with a scheme.
_SECRET = re.compile(rf"(\b{_KEY_PREFIX}|://[\w.:\[\]-]+(?:/v1)*/s/)[\w-]+")


@attrs.define(kw_only=True, eq=False)
class Session:
    """Live handle of one record: authenticates its calls, and holds its ledger, counters and interactions."""

    record_id: str
    base_url: str = attrs.field(repr=False)
    """URL without `/v1`; contains the session's token."""
    api_key: str = attrs.field(repr=False)
    token: str = attrs.field(repr=False)
    """Token in the URL. It, the key and the URL are empty if another process opened the session: only digests are
    stored."""
    key_hash: bytes = attrs.field(repr=False)
    token_hash: bytes = attrs.field(repr=False)
    group_id: str
    policy: SamplingPolicy = attrs.field(repr=False)
    seed_key: tuple[int, ...] = attrs.field(repr=False)
    online: OnlineSession | None = attrs.field(default=None, repr=False)
    """State of an online session: rewards, expiry; None for a session that the run's own agent uses."""
    unloaded: bool = attrs.field(default=False, repr=False)
    """Whether the calls so far are only in the store, because another process answered them; loaded before use."""
    closed: bool = False
    """Whether calls are refused."""
    used_at: float = attrs.field(factory=time.monotonic, init=False, repr=False)
    """Time of the last call, in seconds of `time.monotonic`."""
    ledger: Ledger = attrs.field(factory=Ledger, init=False, repr=False)
    compacted: CompactedHistories = attrs.field(factory=CompactedHistories, init=False, repr=False)
    attempts: Attempts = attrs.field(factory=Attempts, init=False, repr=False)
    rate: CallRate = attrs.field(factory=CallRate, init=False, repr=False)
    lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)
    """Lock of the fields below and of the ledger; held briefly, never across an await."""
    twin: int = attrs.field(default=0, init=False, repr=False)
    """Number among the open sessions with the same seed key, so that reply ids in the engine are unique."""
    num_calls: int = attrs.field(default=0, init=False)
    """Number of policy replies begun."""
    num_upstream_calls: int = attrs.field(default=0, init=False)
    """Number of calls to upstreams begun."""
    num_finished: int = attrs.field(default=0, init=False)
    """Number of finished replies, the policy's and upstreams'; the next interaction's `seq`."""
    running: set[str] = attrs.field(factory=set, init=False, repr=False)
    """Request ids of running generations in the engine."""
    writes: set[concurrent.futures.Future[None]] = attrs.field(factory=set, init=False, repr=False)
    """Pending store writes of finished calls."""
    interactions: list[Interaction] = attrs.field(factory=list, init=False, repr=False)
    """Stored interactions, in the order in which their writes ended."""
    refusal: str = attrs.field(default="", init=False)
    """HTTP status, code and message of the last call that was refused or failed; empty if none was."""

    def remember_refusal(self, error: RequestError) -> None:
        """Keep the reason why a call got no reply, to explain a failed episode.

        Calls after the end of the episode are left out: their refusal explains nothing.
        """
        if not self.closed:
            self.refusal = f"{error.status} {error.code}: {error}"[:_LONGEST_REFUSAL]

    def check_open(self) -> None:
        """Raise `RequestError` (410) if the episode has ended."""
        if self.closed:
            raise session_ended()


class SessionBook:
    """All live sessions, indexed by the digests of their secrets; thread-safe.

    `url()` is the gateway's address. `url_tokens` is whether the token in the URL, without the API key, authenticates a
    caller on this machine.
    """

    def __init__(self, *, url: Callable[[], str], url_tokens: bool = True) -> None:
        self._url = url
        self._url_tokens = url_tokens
        self._by_token: dict[bytes, Session] = {}
        self._by_key: dict[bytes, Session] = {}
        self._by_record: dict[str, Session] = {}
        """Online sessions, by their record ids."""
        self._twins: dict[tuple[int, ...], dict[int, Session]] = {}
        """Open sessions by seed key, then by their `twin` numbers."""
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        """Digests of ended sessions' secrets, oldest first."""
        self._lock = threading.Lock()

    def open(
        self,
        record: Record,
        *,
        policy: SamplingPolicy,
        seed_key: tuple[int, ...],
        api_key: str | None = None,
        online: OnlineSession | None = None,
    ) -> Session:
        """Open a session with new secrets, or with the `api_key` that the client chose.

        `RequestError` (409) if that key belongs to an open session.
        """
        token = secrets.token_urlsafe(16)
        api_key = api_key or f"{_KEY_PREFIX}{secrets.token_urlsafe(32)}"
        session = Session(
            record_id=record.id,
            base_url=f"{self._url()}/s/{token}",
            api_key=api_key,
            token=token,
            key_hash=digest_of(api_key),
            token_hash=digest_of(token),
            group_id=record.group_id,
            policy=policy,
            seed_key=seed_key,
            online=online,
        )
        self._add(session)
        return session

    def restore(self, row: SessionRow, *, policy: SamplingPolicy, online: OnlineSession) -> Session:
        """Add a session that another process opened, from its row in the store; its calls are loaded later."""
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
            online=online,
            unloaded=True,
            closed=row.state != "open",
        )
        self._add(session)
        return session

    def end(self, session: Session) -> None:
        """Remove a session; its secrets get 410 from now on."""
        with self._lock:
            self._by_record.pop(session.record_id, None)
            self._forget_twin(session)
            for book, digest in (self._by_token, session.token_hash), (self._by_key, session.key_hash):
                if book.get(digest) is session:  # a client may have opened a newer session with the same key
                    del book[digest]
                    self._ended[digest] = None
            self._forget_ends()

    def remember_ends(self, digests: Iterable[bytes]) -> None:
        """Let the secrets with these digests get 410."""
        with self._lock:
            self._ended.update(dict.fromkeys(digests))
            self._forget_ends()

    def find_by_key(self, api_key: str) -> Session | None:
        """Return the session of an API key; None if there is none."""
        return self._by_key.get(digest_of(api_key))

    def online_sessions(self) -> list[Session]:
        """Return the online sessions, oldest first."""
        with self._lock:
            return list(self._by_record.values())

    def online_session(self, record_id: str) -> Session | None:
        """Return an online session by its record's id, which is its session id; None if there is none."""
        return self._by_record.get(record_id)

    def authorize_online(self, headers: Mapping[str, str]) -> Session:
        """Return the online session of the key in `headers`, even if it takes no more calls.

        `RequestError` (401, 403 or 410) if the key is unknown, belongs to one of the run's own sessions, or has ended.
        """
        session = self._find(self._by_key, key_of(headers))
        if session.online is None:
            raise RequestError(403, "not_yours", "this session belongs to the run that opened it; only the run ends it")
        return session

    def authorize(self, token: str | None, headers: Mapping[str, str], *, local: bool = True) -> Session:
        """Return the session of a call, by the token in its URL and the key in its headers.

        `local`: whether the call comes from this machine and not through a proxy. `RequestError` (401, 403 or 410) if
        the call is refused.
        """
        key = key_of(headers)
        session = self._of_credentials(token, key, token_is_enough=local and self._url_tokens)
        # An online session is kept after its end, as it still takes rewards, so it may be found closed.
        session.check_open()
        session.used_at = time.monotonic()
        return session

    def _of_credentials(self, token: str | None, key: str | None, *, token_is_enough: bool) -> Session:
        """Return the session that a URL's token and an API key belong to; each may be missing.

        On this machine the token is the credential: an agent needs no key there, and a key that no session has is
        ignored. From elsewhere the key is the credential, and a token must be the same session's.
        """
        if token is None or not token_is_enough:
            if token is not None and key is None:
                raise RequestError(
                    401,
                    "invalid_api_key",
                    "the URL alone is not enough from another machine, through a proxy or with gateway.url_tokens: "
                    "false; send the session's api_key as Bearer or x-api-key",
                )
            session = self._find(self._by_key, key)
            if token is not None and not hmac.compare_digest(digest_of(token), session.token_hash):
                raise _wrong_session()
            return session
        session = self._find(self._by_token, token)
        # SDKs always send some key, often a placeholder or the one of their provider: it says nothing. But the key of
        # another episode means that an agent mixes up two clients, and its calls would be recorded in the wrong one.
        digest = session.key_hash if key is None else digest_of(key)
        others = not hmac.compare_digest(digest, session.key_hash)
        if others and (digest in self._by_key or digest in self._ended):
            raise _wrong_session()
        return session

    def _add(self, session: Session) -> None:
        with self._lock:
            # Only keys that clients choose can collide. An ended session may lose its key to a new one.
            holder = self._by_key.get(session.key_hash)
            if holder is not None and not holder.closed:
                raise session_active()
            twins = self._twins.setdefault(session.seed_key, {})
            session.twin = next(number for number in itertools.count() if number not in twins)
            twins[session.twin] = session
            self._by_token[session.token_hash] = session
            self._by_key[session.key_hash] = session
            self._ended.pop(session.key_hash, None)
            if session.online is not None:
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
    """Return a text without the keys and URL tokens of sessions, which the errors that agents raise may quote."""
    return _SECRET.sub(r"\1…", text)


def session_ended() -> RequestError:
    """Build the error (410) for a call that comes after the end of its episode."""
    return RequestError(
        410,
        "session_ended",
        "this episode has ended; its session takes no more calls. If one client serves all episodes, create one in "
        "each episode, or use client.with_options(base_url=…, api_key=…)",
    )


def session_active() -> RequestError:
    """Build the error (409) for a key that belongs to an open session."""
    return RequestError(
        409, "session_active", "this api_key belongs to an open session; end that session first, or use another key"
    )


def digest_of(secret: str) -> bytes:
    """Return the SHA-256 digest under which a secret is kept and looked up."""
    return hashlib.sha256(secret.encode()).digest()


def key_of(headers: Mapping[str, str]) -> str | None:
    """Return the key in the `Authorization: Bearer` header, else in `x-api-key`; None if there is none."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    return headers.get("x-api-key") or None


def _wrong_session() -> RequestError:
    return RequestError(
        403,
        "wrong_session",
        "the API key and the URL belong to different sessions; use the base_url and the api_key of the same episode",
    )
