"""Limit each session's concurrent replies and calls per minute, so that one agent cannot occupy the engine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import attrs

from agentrl_core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrl_core.gateway.sessions import Session

_MINUTE_S = 60.0
_LATER_S = 1.0
"""`Retry-After` of a call refused for concurrent replies: it is unknown when one of them ends."""


@attrs.define
class CallRate:
    """Token bucket of a session's calls: full at first, refilled within a minute."""

    num_calls: float | None = None
    """Calls left at the time `at`; None before the first call."""
    at: float = 0.0
    """Time of the last update, in the clock's seconds."""


@attrs.frozen(kw_only=True)
class Quotas:
    """Limits of each session, and the check that a call keeps them."""

    replies: int
    """Number of running replies from which on a new call is refused."""
    calls_per_minute: int | None = None
    """Number of calls per minute on average; None: no limit."""
    clock: Callable[[], float] = time.monotonic

    def take(self, session: Session) -> None:
        """Count a call of a session; `RequestError` (429) if it exceeds a limit."""
        if len(session.running) >= self.replies:
            raise _too_many(
                f"{len(session.running)} replies are being generated, at most {self.replies} may be when a call begins "
                "(gateway.max_session_replies)",
                _LATER_S,
            )
        if self.calls_per_minute is None:
            return
        # The read and the write of the bucket are one step: calls of one session may come from several threads.
        with session.lock:
            wait_s = self._take_call(session.rate, self.calls_per_minute)
        if wait_s:
            raise _too_many(
                f"more than {self.calls_per_minute} calls a minute (gateway.max_session_calls_per_minute)", wait_s
            )

    def _take_call(self, rate: CallRate, most: int) -> float:
        """Take one call from the bucket and return 0; if it is empty, return the seconds until the next call."""
        now = self.clock()
        left = most if rate.num_calls is None else rate.num_calls + (now - rate.at) * most / _MINUTE_S
        rate.num_calls, rate.at = min(left, most), now
        if rate.num_calls < 1:
            return (1 - rate.num_calls) * _MINUTE_S / most
        rate.num_calls -= 1
        return 0.0


def _too_many(message: str, wait_s: float) -> RequestError:
    return RequestError(429, "rate_limit_exceeded", f"this session has too many calls: {message}", retry_after_s=wait_s)
