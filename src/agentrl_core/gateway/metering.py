"""Measure the CPU time that requests cost, by timing each step of a coroutine with the thread's CPU clock.

Steps of other coroutines on the same event loop, which run while one waits, are not counted.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from agentrl_core.gateway.serving.web import WrappedStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator

_T = TypeVar("_T")


class CpuMeter:
    """Sum of the CPU seconds spent on requests, by all threads."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        """Add CPU seconds."""
        with self._lock:
            self.seconds += seconds

    async def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine and add the CPU seconds of its own steps when it ends."""
        return await _Steps(coroutine, self.add)

    def stream(self, stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """Return a stream that adds the CPU seconds spent on each item."""
        return _MeteredStream(stream, self.add)


class _MeteredStream(WrappedStream):
    """Stream that passes the CPU seconds spent on each item to `add`."""

    def __init__(self, stream: AsyncGenerator[bytes, None], add: Callable[[float], None]) -> None:
        super().__init__(stream)
        self._add = add

    async def asend(self, value: None) -> bytes:
        """Return the next item."""
        return await _Steps(super().asend(value), self._add)


class _Steps(Generic[_T]):
    """Awaitable that drives a coroutine step by step and reads the thread's CPU clock before and after each step."""

    def __init__(self, coroutine: Awaitable[_T], add: Callable[[float], None]) -> None:
        self._coroutine: Any = coroutine
        self._add = add

    def __await__(self) -> Generator[Any, Any, _T]:
        # Driven by hand, as `await` would not show where the coroutine's own steps begin and end.
        steps = self._coroutine if hasattr(self._coroutine, "send") else self._coroutine.__await__()
        send, clock = steps.send, time.thread_time
        spent = 0.0
        raised: BaseException | None = None
        try:
            while True:
                started = clock()
                try:
                    waiting_for = send(None) if raised is None else steps.throw(raised)
                except StopIteration as done:
                    return cast("_T", done.value)
                finally:
                    spent += clock() - started
                raised = None
                try:
                    yield waiting_for
                except BaseException as error:  # noqa: BLE001 - thrown into the coroutine, cancellation included
                    raised = error
        finally:
            self._add(spent)
