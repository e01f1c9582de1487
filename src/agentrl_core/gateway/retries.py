"""Let a client that asks again get the reply that it missed, in place of a second one.

An SDK that lost a reply sends the same body again and says so (`x-stainless-retry-count`), or names the request by an
`Idempotency-Key`. The same body without either is another sample of the same prompt, which agents want on purpose.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from agentrl_core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentrl_core.gateway.exchange import Choice
    from agentrl_core.gateway.http import HttpRequest

_REMEMBERED = 64
"""Attempts of a session whose replies can still be asked for again."""


@attrs.frozen(kw_only=True)
class RetryKey:
    """What makes two requests the same one."""

    body: bytes
    """Digest of route and body."""
    name: str | None
    """The client's `Idempotency-Key`."""
    retried: bool
    """Whether the client says that it asks again."""


@attrs.define(kw_only=True, eq=False)
class Attempt:
    """One request that may be asked for again."""

    key: RetryKey
    done: concurrent.futures.Future[tuple[Choice, ...] | None] = attrs.field(factory=concurrent.futures.Future)
    """Its reply; None where there will be none."""
    repeats: int = 0
    """Clients that asked again."""

    @property
    def choices(self) -> tuple[Choice, ...] | None:
        """Its reply, if it is there."""
        return self.done.result() if self.done.done() else None


class Attempts:
    """The requests of one session that may be asked for again; thread-safe, of no event loop."""

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
                attempt = self._find(key)
                if attempt is None:
                    return Attempt(key=key)
                attempt.repeats += 1
            if await asyncio.shield(asyncio.wrap_future(attempt.done)) is not None:
                return attempt
            # It came to nothing, and was forgotten: ask as if for the first time.

    @contextmanager
    def running(self, attempt: Attempt | None) -> Iterator[None]:
        """Let others wait for an attempt; one that ends without a reply is forgotten, and they try themselves."""
        if attempt is not None:
            with self._lock:
                self._known.append(attempt)
        try:
            yield
        finally:
            if attempt is not None and not attempt.done.done():
                with self._lock:
                    if attempt in self._known:
                        self._known.remove(attempt)
                attempt.done.set_result(None)

    def finish(self, attempt: Attempt | None, choices: tuple[Choice, ...]) -> None:
        """Keep the reply for those who ask again."""
        if attempt is not None:
            attempt.done.set_result(choices)

    def _find(self, key: RetryKey) -> Attempt | None:
        if key.name is not None:
            named = next((attempt for attempt in self._known if attempt.key.name == key.name), None)
            if named is not None and named.key.body != key.body:
                raise RequestError(
                    400,
                    "idempotency_key_reused",
                    "this Idempotency-Key came with another request before; use a new one",
                )
            return named
        if not key.retried:
            return None
        # Twins were asked for on purpose: each of their retries takes another one.
        same = [attempt for attempt in self._known if attempt.key.body == key.body and attempt.key.name is None]
        return min(same, key=lambda attempt: attempt.repeats, default=None)


def retry_key(request: HttpRequest) -> RetryKey | None:
    """Return what identifies a request of a client that may ask again; None where it says nothing of that."""
    name, count = request.headers.get("idempotency-key"), request.headers.get("x-stainless-retry-count")
    if name is None and count is None:
        return None
    route = request.path.rpartition("/")[2]
    digest = hashlib.blake2b(request.body, digest_size=16, person=route.encode()[:16]).digest()
    return RetryKey(body=digest, name=name, retried=count not in {None, "0"})
