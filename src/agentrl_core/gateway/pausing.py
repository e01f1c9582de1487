"""Pause and resume: hold back new calls of one session or of all, while running generations go on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from agentrl_core.concurrency.wakeups import Wakeups
from agentrl_core.errors import RequestError

if TYPE_CHECKING:
    from agentrl_core.gateway.sessions import Session


class Gate:
    """Gate that each call passes before it begins; thread-safe, usable from several event loops."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._closed: set[Session | None] = set()
        """Paused sessions; None among them pauses all."""
        self._changed = Wakeups()

    def close(self, session: Session | None = None) -> None:
        """Hold back new calls of a session, or of all sessions."""
        self._closed.add(session)

    def open(self, session: Session | None = None) -> None:
        """Release the calls that `close` with the same argument holds back."""
        self._closed.discard(session)
        self._changed.wake()

    async def passed(self, session: Session) -> None:
        """Wait until a session's calls are not held back; `RequestError` (503) after the timeout."""
        if not self._closed:
            return
        end = time.monotonic() + self._timeout_s
        with self._changed.listen() as changed:
            while None in self._closed or session in self._closed:
                session.used_at = time.monotonic()  # a session that waits here is not idle and must not expire
                left = end - session.used_at
                if left <= 0:
                    raise RequestError(
                        503,
                        "paused",
                        f"the gateway has been paused for gateway.pause_timeout_s = {self._timeout_s:g} s; try again",
                        retry_after_s=1.0,
                    )
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), left)
                changed.clear()
        session.used_at = time.monotonic()
