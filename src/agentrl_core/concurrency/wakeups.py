"""Wake-up calls from any thread to coroutines of any event loop, used by a store whose callers have several loops.

`asyncio.Event` alone does not do: it belongs to one loop and may be set only on that loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Wakeups:
    """A broadcast: `wake` sets the event of every listener, on the listener's own loop."""

    count: int
    """Number of calls of `wake` so far, plus 1."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 1
        self._listeners: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @contextlib.contextmanager
    def listen(self) -> Iterator[asyncio.Event]:
        """Yield an event for a coroutine of the running loop; every later `wake` sets it."""
        listener = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._listeners.add(listener)
        try:
            yield listener[1]
        finally:
            with self._lock:
                self._listeners.discard(listener)

    def wake(self) -> None:
        """Wake all listeners; callable from any thread, with or without a running loop."""
        with self._lock:
            self.count += 1
            listeners = tuple(self._listeners)
        # A listener that leaves after the copy gets a wake-up that it ignores.
        for loop, event in listeners:
            # A loop that was closed while its coroutine waited raises RuntimeError; nobody is left to wake there.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)
