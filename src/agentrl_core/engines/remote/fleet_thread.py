"""Event loop of a fleet, on a thread of its own, which lasts as long as the engine."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class FleetThread:
    """Event loop on a daemon thread."""

    def __init__(self) -> None:
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._end = asyncio.Event()

        async def turn() -> None:
            started.set_result(asyncio.get_running_loop())
            await self._end.wait()

        self._thread = threading.Thread(target=lambda: asyncio.run(turn()), name="fleet", daemon=True)
        self._thread.start()
        self._loop = started.result()

    @property
    def has_ended(self) -> bool:
        """Whether the loop runs nothing any more."""
        return self._loop.is_closed()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a function on the loop soon; does nothing once the loop has ended."""
        with contextlib.suppress(RuntimeError):  # raised by a closed loop
            self._loop.call_soon_threadsafe(function, *arguments)

    def close(self) -> None:
        """Cancel what runs on the loop, and wait for the thread; idempotent."""
        self.call(self._end.set)
        self._thread.join()
