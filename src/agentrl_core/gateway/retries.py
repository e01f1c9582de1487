"""Let a client that asks again get the reply that it missed, in place of a second one.

A request with an `Idempotency-Key` is the same one wherever that comes again. An SDK that lost a reply sends the same
body again, too, and counts (`x-stainless-retry-count`), but that names no request: it may be the retry of any request
with this body, one that never arrived included, and the same body without either is another sample of the same
prompt, which agents want on purpose. So a count brings back nothing but a reply whose client left before it was sent.
Any other retry gets a reply of its own: one too many costs a generation, one for two requests would pass one sample
off as two.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

import attrs

from agentrl_core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentrl_core.gateway.exchange import Choice
    from agentrl_core.gateway.serving.web import HttpRequest

_REMEMBERED = 64
"""Attempts of a session whose replies can still be asked for again."""

_MOST_DIGITS = 6
"""Of a retry count; what is longer is none."""


@attrs.frozen(kw_only=True)
class RetryKey:
    """What makes two requests the same one."""

    body: bytes
    """Digest of route and body."""
    name: str | None
    """Digest of the client's `Idempotency-Key`."""
    retries: int = 0
    """How often the client says that it has asked before."""

    @property
    def text(self) -> str:
        """Form stored with the reply; empty where no other process may give the reply again."""
        return "" if self.name is None else f"{self.body.hex()}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what was stored."""
        body, _, name = text.partition("/")
        return cls(body=bytes.fromhex(body), name=name or None)


@attrs.define(kw_only=True, eq=False)
class Attempt:
    """One request that may be asked for again."""

    key: RetryKey
    """Of the request that asked for it last."""
    done: concurrent.futures.Future[tuple[Choice, ...] | None] = attrs.field(factory=concurrent.futures.Future)
    """Its reply; None where there will be none."""
    storing: bool = False
    """Whether its reply is complete and on its way to the store, from where on a client that leaves changes nothing."""
    missed: bool = False
    """Whether its client left before the reply was sent: nobody has it, and nobody waits for it."""

    @property
    def choices(self) -> tuple[Choice, ...] | None:
        """Its reply, if it is there."""
        return self.done.result() if self.done.done() else None

    def settle(self, choices: tuple[Choice, ...] | None) -> None:
        """Tell those who asked again."""
        self.done.set_result(choices)


class Attempts:
    """The requests of one session that may be asked for again; thread-safe, of no event loop.

    Those with a name are kept with their replies, the others until their reply is sent or comes to nothing.
    """

    def __init__(self) -> None:
        self._known: deque[Attempt] = deque(maxlen=_REMEMBERED)
        self._lock = threading.Lock()

    async def enter(self, key: RetryKey | None) -> Attempt | None:
        """Return the attempt with the reply that the client missed, or a new one to be run; None without a key.

        Waits where the reply is still being made. `RequestError` (400) for an idempotency key with another body.
        """
        if key is None:
            return None
        while True:
            with self._lock:
                earlier = self._take_missed(key) if key.name is None else self._named(key)
            if earlier is None:
                return Attempt(key=key)
            try:
                reply = await asyncio.shield(asyncio.wrap_future(earlier.done))
            except asyncio.CancelledError:
                if key.name is None:
                    self._miss(earlier)
                raise
            if reply is not None:
                return earlier
            with self._lock:
                if earlier in self._known:  # it came to nothing: this one stands for it now
                    self._known.remove(earlier)
                    return Attempt(key=key)

    def restore(self, key: RetryKey, choices: tuple[Choice, ...]) -> None:
        """Know a request whose reply was stored by another process."""
        attempt = Attempt(key=key, storing=True)
        attempt.settle(choices)
        with self._lock:
            self._known.append(attempt)

    @contextmanager
    def running(self, attempt: Attempt | None, *, streamed: bool = False) -> Iterator[None]:
        """Let others wait for an attempt; where it ends without a reply, they try themselves.

        The context ends when the reply is about to be sent, or by an exception where its client has left. One that is
        `streamed` is never missed: its client has seen a part of it.
        """
        if attempt is None:
            yield
            return
        named = attempt.key.name is not None
        if named:
            with self._lock:
                self._known.append(attempt)
        try:
            yield
        except BaseException:
            if attempt.storing and not (named or streamed):
                self._miss(attempt)
            raise
        finally:
            if not attempt.storing:
                attempt.settle(None)

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
        """Return a missed reply for a retry, from now on its own; None where it needs another one.

        The retry of a request that was asked for as often before is that of another request.
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
            self._known.append(attempt)


def retry_key(request: HttpRequest) -> RetryKey | None:
    """Return what identifies a request of a client that may ask again; None where it says nothing of that."""
    name, count = request.headers.get("idempotency-key"), request.headers.get("x-stainless-retry-count")
    if name is None and count is None:
        return None
    route = request.path.rpartition("/")[2]
    digest = hashlib.blake2b(request.body, digest_size=16, person=route.encode()[:16]).digest()
    retries = int(count) if count is not None and count.isdecimal() and len(count) <= _MOST_DIGITS else 0
    named = None if name is None else hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    return RetryKey(body=digest, name=named, retries=retries)
