"""Recognise a client's retry and give it the reply that it missed, instead of sampling a second one.

An `Idempotency-Key` identifies a request: the same key again is always a retry. SDKs also resend a lost request with a
retry count (`x-stainless-retry-count`), but a count identifies no request: it may be the retry of any request with this
body, even of one that never arrived. The same body without either header is another sample of the same prompt, which
agents request on purpose (best of n).

So a count only retrieves a reply whose client disconnected before it was sent; every other counted retry gets a new
reply. The two mistakes are not equally bad: a superfluous reply costs one generation, but one reply given to two
requests would count one sample twice.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

import attrs

from agentrl_core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentrl_core.gateway.call_types import Choice
    from agentrl_core.gateway.serving.web import HttpRequest

_REMEMBERED = 64
"""Number of finished attempts per session whose replies a retry can still get; all running ones are known."""

_MOST_DIGITS = 6
"""Most digits of a retry count; a longer value counts as 0."""


@attrs.frozen(kw_only=True)
class RetryKey:
    """Identity of a request that may be retried."""

    body: bytes
    """Digest of route and body."""
    name: str | None
    """Digest of the client's `Idempotency-Key`; None if the request has a retry count only."""
    retries: int = 0
    """Number of earlier tries, as the client counts them."""

    @property
    def text(self) -> str:
        """Text form that is stored with the reply; empty without an `Idempotency-Key`.

        Only named requests are stored: whether an unnamed one's reply was sent is known to this process alone.
        """
        return "" if self.name is None else f"{self.body.hex()}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form."""
        body, _, name = text.partition("/")
        return cls(body=bytes.fromhex(body), name=name or None)


@attrs.define(kw_only=True, eq=False)
class Attempt:
    """One request that the client may retry, running or finished."""

    key: RetryKey
    """Key of the latest request for this reply."""
    done: concurrent.futures.Future[tuple[Choice, ...] | None] = attrs.field(factory=concurrent.futures.Future)
    """Future of the reply; its result is None if the attempt failed."""
    storing: bool = False
    """Whether the reply is complete and being stored; from then on a disconnect does not cancel it."""
    missed: bool = False
    """Whether the client disconnected before the reply was sent, so that no client has it or waits for it."""

    @property
    def choices(self) -> tuple[Choice, ...] | None:
        """Reply of the attempt; None if it is not finished or failed."""
        return self.done.result() if self.done.done() else None

    def settle(self, choices: tuple[Choice, ...] | None) -> None:
        """Set the result, for retries that wait for it."""
        self.done.set_result(choices)


class Attempts:
    """Attempts of one session that a retry may match; thread-safe, usable from several event loops.

    Attempts with an `Idempotency-Key` are kept with their replies, the others only while their reply is `missed`.
    """

    def __init__(self) -> None:
        self._known: list[Attempt] = []
        self._lock = threading.Lock()

    async def enter(self, key: RetryKey | None) -> Attempt | None:
        """Return the earlier attempt that this request retries, with its reply, else a new attempt that is to be run.

        None if `key` is None. Waits while the earlier attempt runs. A new attempt must end in `running` or `give_up`,
        as its retries wait for it from here on. `RequestError` (400) for an `Idempotency-Key` that came with another
        body before.
        """
        if key is None:
            return None
        while True:
            with self._lock:
                earlier = self._take_missed(key) if key.name is None else self._named(key)
                if earlier is None:
                    return self._begin(key)
            # Shielded, as a client that stops waiting must not cancel the future for all others.
            try:
                reply = await asyncio.shield(asyncio.wrap_future(earlier.done))
            except asyncio.CancelledError:
                # This retry had taken the reply over and lost it, too: a later retry may have it.
                if key.name is None:
                    self._miss(earlier)
                raise
            if reply is not None:
                return earlier
            with self._lock:
                # It failed. Of several retries that waited, the one that removes it runs; the others look again.
                if earlier in self._known:
                    self._known.remove(earlier)
                    return self._begin(key)

    def give_up(self, attempt: Attempt | None) -> None:
        """Forget a new attempt that failed before it ran, so that its retries run themselves; else do nothing."""
        if attempt is None or attempt.storing or attempt.done.done():
            return
        with self._lock:
            if attempt in self._known:
                self._known.remove(attempt)
        attempt.settle(None)

    def restore(self, key: RetryKey, choices: tuple[Choice, ...]) -> None:
        """Add a finished request whose reply another process stored."""
        attempt = Attempt(key=key, storing=True)
        attempt.settle(choices)
        with self._lock:
            self._remember(attempt)

    @contextmanager
    def running(self, attempt: Attempt | None, *, streamed: bool = False) -> Iterator[None]:
        """Run an attempt inside this context, so that its retries wait for it; if it fails, they run themselves.

        The context ends when the reply is about to be sent, or with an exception if the client disconnected. A
        `streamed` reply is never `missed`, as its client has seen a part of it.
        """
        if attempt is None:
            yield
            return
        try:
            yield
        except BaseException:
            # A complete reply whose client is gone. Named attempts stay known anyway.
            if attempt.storing and attempt.key.name is None and not streamed:
                self._miss(attempt)
            raise
        finally:
            if not attempt.storing:
                attempt.settle(None)

    def _begin(self, key: RetryKey) -> Attempt:
        """Return a new attempt; the caller holds the lock under which it found no earlier one.

        Requests arrive on several event loops. If the attempt were added later, two of one name could both run.
        """
        attempt = Attempt(key=key)
        if key.name is not None:
            self._remember(attempt)
        return attempt

    def _remember(self, attempt: Attempt) -> None:
        """Add an attempt, and forget the oldest finished ones; if a running one were forgotten, its retry would run."""
        self._known.append(attempt)
        finished = [known for known in self._known if known.done.done()]
        for old in finished[:-_REMEMBERED]:
            self._known.remove(old)

    def _named(self, key: RetryKey) -> Attempt | None:
        named = next((attempt for attempt in self._known if attempt.key.name == key.name), None)
        if named is not None and named.key.body != key.body:
            raise RequestError(
                400,
                "idempotency_key_reused",
                "this Idempotency-Key came with another request before; use a new one",
            )
        return named

    def _take_missed(self, key: RetryKey) -> Attempt | None:
        """Return a missed attempt that a counted retry may have; None if it needs a new reply.

        The retry takes the attempt over: no other retry gets it. A retry with the same or a smaller count than the
        attempt's belongs to another request with the same body.
        """
        for attempt in self._known:
            if attempt.missed and attempt.key.body == key.body and attempt.key.retries < key.retries:
                self._known.remove(attempt)
                attempt.key, attempt.missed = key, False
                return attempt
        return None

    def _miss(self, attempt: Attempt) -> None:
        with self._lock:
            attempt.missed = True
            self._remember(attempt)


def retry_key(request: HttpRequest) -> RetryKey | None:
    """Return the key of a request whose headers announce retries; None for all others."""
    name, count = request.headers.get("idempotency-key"), request.headers.get("x-stainless-retry-count")
    if name is None and count is None:
        return None
    # The route belongs to the digest: one body may be valid for two APIs.
    route = request.path.rpartition("/")[2]
    digest = hashlib.blake2b(request.body, digest_size=16, person=route.encode()[:16]).digest()
    retries = int(count) if count is not None and count.isdecimal() and len(count) <= _MOST_DIGITS else 0
    named = None if name is None else hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    return RetryKey(body=digest, name=named, retries=retries)
