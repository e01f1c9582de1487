"""Slots of the episodes that run at once: a semaphore whose size may change, and that measures its idle time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable


class EpisodeSlots:
    """Slots of one event loop, given out in the order in which they were asked for; `async with slots:` holds one.

    `idle_s` counts from `start` on.
    """

    def __init__(self, limit: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._used = limit, 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._clock = clock
        self._idle_s, self._idle_since = 0.0, clock()

    @property
    def limit(self) -> int:
        """Number of slots; after a change to a smaller number, those that are held stay until they are given back."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit
        self._give_out()

    def start(self) -> None:
        """Count idle time from now on."""
        self._idle_s, self._idle_since = 0.0, self._clock()

    @property
    def idle_s(self) -> float:
        """Seconds so far during which no slot was held; may be read from any thread."""
        since = self._idle_since
        return self._idle_s + (0.0 if self._used else self._clock() - since)

    async def __aenter__(self) -> None:
        if self._used < self._limit and not self._waiting:
            self._take()
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with contextlib.suppress(ValueError):  # `_give_out` has passed over it
                    self._waiting.remove(turn)
            else:  # cancelled after the slot had been given out, and before this coroutine went on
                self._give_back()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._give_back()

    def _take(self) -> None:
        if not self._used:
            self._idle_s += self._clock() - self._idle_since
        self._used += 1

    def _give_back(self) -> None:
        self._used -= 1
        if not self._used:
            self._idle_since = self._clock()
        self._give_out()

    def _give_out(self) -> None:
        while self._waiting and self._used < self._limit:
            turn = self._waiting.popleft()
            if not turn.cancelled():
                self._take()
                turn.set_result(None)
