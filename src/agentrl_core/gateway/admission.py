"""Hold back or refuse calls before they begin: while the gateway or their session is paused, or beyond the quotas."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import attrs

from agentrl_core.concurrency.wakeups import Wakeups
from agentrl_core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agentrl_core.gateway.sessions import Session

_MINUTE_S = 60.0
_LATER_S = 1.0
"""`Retry-After` of a call refused for a pause or for concurrent replies: it is unknown when they end."""


@attrs.define
class CallRate:
    """Token bucket of a session's calls: full at first, refilled within a minute."""

    num_calls: float | None = None
    """Calls left at the time `at`; None before the first call."""
    at: float = 0.0
    """Time of the last update, in the clock's seconds."""


class Admission:
    """Waits and checks before a session's call begins; thread-safe, usable from several event loops.

    At most `most_replies` replies of a session may run when its next call begins, and it may begin `calls_per_minute`
    calls a minute on average (None: any number), so that one agent cannot occupy the engine. `load(session)` reads the
    calls of a restored session from the store.
    """

    def __init__(
        self,
        *,
        pause_timeout_s: float,
        most_replies: int,
        calls_per_minute: int | None,
        load: Callable[[Session], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pause_timeout_s = pause_timeout_s
        self._most_replies = most_replies
        self._calls_per_minute = calls_per_minute
        self._load = load
        self._clock = clock
        self._paused: set[Session | None] = set()
        """Paused sessions; None among them pauses all."""
        self._changed = Wakeups()

    def pause(self, session: Session | None = None) -> None:
        """Hold back new calls of a session, or of all sessions; running generations go on."""
        self._paused.add(session)

    def resume(self, session: Session | None = None) -> None:
        """Release the calls that `pause` with the same argument holds back."""
        self._paused.discard(session)
        self._changed.wake()

    async def admit(self, session: Session) -> None:
        """Wait until a session's call may begin, and count it; `RequestError` (429) if it exceeds a quota."""
        await self.ready(session)
        # Checked after the wait: the quota counts the replies that run when a call begins.
        self._count(session)

    async def ready(self, session: Session) -> None:
        """Load a session's history and wait until nothing pauses it; `RequestError` (503) after the timeout."""
        if session.unloaded:
            await self._load(session)
        if self._paused:
            await self._resumed(session)

    async def _resumed(self, session: Session) -> None:
        end = time.monotonic() + self._pause_timeout_s
        with self._changed.listen() as changed:
            while None in self._paused or session in self._paused:
                session.used_at = time.monotonic()  # a session that waits here is not idle and must not expire
                left = end - session.used_at
                if left <= 0:
                    raise RequestError(
                        503,
                        "paused",
                        f"the gateway has been paused for gateway.pause_timeout_s = {self._pause_timeout_s:g} s; try "
                        "again",
                        retry_after_s=_LATER_S,
                    )
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), left)
                changed.clear()
        session.used_at = time.monotonic()

    def _count(self, session: Session) -> None:
        """Count a call of a session; `RequestError` (429) if it exceeds a quota."""
        running, most = len(session.running), self._calls_per_minute
        if running >= self._most_replies:
            raise _too_many(
                f"{running} replies are being generated, at most {self._most_replies} may be when a call begins "
                "(gateway.max_session_replies)",
                _LATER_S,
            )
        if most is None:
            return
        # The read and the write of the bucket are one step: calls of one session may come from several threads.
        with session.lock:
            wait_s = self._take_call(session.rate, most)
        if wait_s:
            raise _too_many(f"more than {most} calls a minute (gateway.max_session_calls_per_minute)", wait_s)

    def _take_call(self, rate: CallRate, most: int) -> float:
        """Take one call from the bucket and return 0; if it is empty, return the seconds until the next call."""
        now = self._clock()
        left = most if rate.num_calls is None else rate.num_calls + (now - rate.at) * most / _MINUTE_S
        rate.num_calls, rate.at = min(left, most), now
        if rate.num_calls < 1:
            return (1 - rate.num_calls) * _MINUTE_S / most
        rate.num_calls -= 1
        return 0.0


def _too_many(message: str, wait_s: float) -> RequestError:
    return RequestError(429, "rate_limit_exceeded", f"this session has too many calls: {message}", retry_after_s=wait_s)
