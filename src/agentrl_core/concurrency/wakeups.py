"""Waking coroutines of any event loop from any thread, without polling."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Wakeups:
    """A broadcast: `wake` sets the event of everyone who listens, wherever their loop runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @contextlib.contextmanager
    def listen(self) -> Iterator[asyncio.Event]:
        """Give the running loop's coroutine an event that every `wake` sets from now on."""
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
            listeners = tuple(self._listeners)
        for loop, event in listeners:
            with contextlib.suppress(RuntimeError):  # its loop was closed while it waited: nobody is there to wake
                loop.call_soon_threadsafe(event.set)
