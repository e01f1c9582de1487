"""An event loop on a thread of its own, and how the main thread waits for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads; every failure surfaces where the result is awaited.

    `workers`: threads for the synchronous parts of agents.
    """

    def __init__(self, name: str, *, workers: int) -> None:
        self._loop = uvloop.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(workers, thread_name_prefix=f"{name}-worker"))
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Block until `work` is done; Ctrl-C cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin `work` as a task of the loop, without waiting for its end."""

        async def begin() -> asyncio.Task[T]:
            return asyncio.get_running_loop().create_task(work)

        return self.run(begin())

    def cpu_seconds(self) -> float:
        """CPU seconds of the thread so far."""

        async def measure() -> float:
            return time.thread_time()

        return self.run(measure())

    def close(self) -> None:
        """Cancel what still runs, and end the thread."""

        async def cancel_all() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.get_running_loop().shutdown_asyncgens()

        if self._thread.is_alive():
            self.run(cancel_all())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
