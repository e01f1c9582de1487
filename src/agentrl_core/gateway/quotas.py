"""Bound what one session takes of the engine, so that no agent's calls keep those of all others waiting."""

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
"""When to try again where it is unknown how long replies take."""


@attrs.define
class CallRate:
    """Token bucket of a session's calls: full at first, refilled within a minute."""

    num_calls: float | None = None
    """None where it has not called yet."""
    at: float = 0.0
    """When that was so, in the clock's seconds."""


@attrs.frozen(kw_only=True)
class Quotas:
    """Of each session."""

    replies: int
    """That are being generated when a new call begins."""
    calls_per_minute: int | None = None
    clock: Callable[[], float] = time.monotonic

    def take(self, session: Session) -> None:
        """Count a call of a session; `RequestError` (429) where it is one too many."""
        if len(session.running) >= self.replies:
            raise _too_many(
                f"{len(session.running)} replies are being generated, at most {self.replies} may be when a call begins "
                "(gateway.max_session_replies)",
                _LATER_S,
            )
        if self.calls_per_minute is None:
            return
        with session.lock:
            wait_s = self._take_call(session.rate, self.calls_per_minute)
        if wait_s:
            raise _too_many(
                f"more than {self.calls_per_minute} calls a minute (gateway.max_session_calls_per_minute)", wait_s
            )

    def _take_call(self, rate: CallRate, most: int) -> float:
        """Take a call; else return in how many seconds there will be one."""
        now = self.clock()
        left = most if rate.num_calls is None else rate.num_calls + (now - rate.at) * most / _MINUTE_S
        rate.num_calls, rate.at = min(left, most), now
        if rate.num_calls < 1:
            return (1 - rate.num_calls) * _MINUTE_S / most
        rate.num_calls -= 1
        return 0.0


def _too_many(message: str, wait_s: float) -> RequestError:
    return RequestError(429, "rate_limit_exceeded", f"this session has too many calls: {message}", retry_after_s=wait_s)
