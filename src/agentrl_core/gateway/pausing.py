"""Hold new calls back for a while, all or those of one session; what is being generated goes on."""

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
    """Where calls wait; thread-safe, of no event loop."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._closed: set[Session | None] = set()
        """Sessions that are paused; None stands for all."""
        self._changed = Wakeups()

    def close(self, session: Session | None = None) -> None:
        """Let the calls of a session wait, or all."""
        self._closed.add(session)

    def open(self, session: Session | None = None) -> None:
        """Let them go on."""
        self._closed.discard(session)
        self._changed.wake()

    async def passed(self, session: Session) -> None:
        """Wait until nothing holds a session's calls back; `RequestError` (503) where that takes too long."""
        if not self._closed:
            return
        end = time.monotonic() + self._timeout_s
        with self._changed.listen() as changed:
            while None in self._closed or session in self._closed:
                session.used_at = time.monotonic()
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
