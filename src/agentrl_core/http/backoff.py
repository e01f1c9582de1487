"""Retry policy for requests to servers, providers and judges: after which failures, how often, after which waits.

Not by tenacity: it counts every attempt alike and knows no `Retry-After`. A free repetition on a connection that the
server had closed, and giving up where a server asks for too long a wait, would each take a class of ours for its hooks,
together more lines than `RetryPolicy`.
"""

from __future__ import annotations

import asyncio
import email.utils
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import attrs

T = TypeVar("T")

RETRYABLE_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
"""HTTP statuses after which the same request may succeed; 520 to 524 are Cloudflare's, 529 is Anthropic's."""

_MOST_STEPS = 64
"""Attempts after which a wait has reached its limit, or does not grow."""


@attrs.frozen(kw_only=True)
class Backoff:
    """Waits that grow from attempt to attempt, each less a random part, so that callers do not all return at once."""

    first_s: float = 0.5
    """Wait before the second attempt."""
    factor: float = 2.0
    """Factor from each wait to the next."""
    longest_s: float = 30.0
    jitter: float = 0.5
    """Largest share of a wait that is randomly subtracted."""
    uniform: Callable[[float, float], float] = random.uniform

    def wait_s(self, attempt: int, asked_s: float | None = None) -> float:
        """Return the wait after attempt number `attempt`, counted from 0; never less than the server asked for."""
        grown = min(self.first_s, self.longest_s)
        for _ in range(min(attempt, _MOST_STEPS)):
            grown = min(grown * self.factor, self.longest_s)
        return max(grown * self.uniform(1 - self.jitter, 1.0), asked_s or 0.0)


class TransientError(Exception):
    """Raised by an attempt that may be repeated; `failure` is raised instead if it is not.

    Only the caller knows whether repeating is safe, as for a request that changes nothing on the server: it raises this
    error if so, and any other error if not. `asked_s` is the wait that the server asks for. A repetition `at_once` does
    not count and does not wait, because the server never saw the attempt.
    """

    def __init__(self, failure: Exception, *, asked_s: float | None = None, at_once: bool = False) -> None:
        super().__init__(str(failure))
        self.failure, self.asked_s, self.at_once = failure, asked_s, at_once


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """Number of times that a call is repeated, and the waits in between."""

    max_retries: int
    backoff: Backoff = Backoff()
    longest_wait_s: float = math.inf
    """A server that asks for a longer wait gets no further attempt."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def wait_s(self, retries: int, asked_s: float | None = None) -> float | None:
        """Return the wait before the next attempt, after a first one and `retries` more; None if there is to be none.

        For callers with a loop of their own; `call` is the usual one.
        """
        wait_s = self.backoff.wait_s(retries, asked_s)
        return None if retries >= self.max_retries or wait_s > self.longest_wait_s else wait_s

    async def call(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return what `attempt` returns, which is repeated after each `TransientError`."""
        retries = 0
        while True:
            try:
                return await attempt()
            except TransientError as error:
                transient = error
            if transient.at_once:
                continue
            wait_s = self.wait_s(retries, transient.asked_s)
            if wait_s is None:
                raise transient.failure from transient.__cause__
            await self.sleep(wait_s)
            retries += 1


def retry_after_s(headers: Mapping[str, str], clock: Callable[[], float] = time.time) -> float | None:
    """Return the wait that a server asks for, in seconds or as a date; None if it gives no usable one."""
    value = headers.get("retry-after", "").strip()
    try:
        wait = float(value)
    except ValueError:
        try:
            wait = email.utils.parsedate_to_datetime(value).timestamp() - clock()
        except (ValueError, OverflowError):
            return None
    return max(0.0, wait) if math.isfinite(wait) else None
