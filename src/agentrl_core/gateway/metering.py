"""Count the CPU time of a coroutine, on whichever thread and between whichever others it runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator

_T = TypeVar("_T")


async def metered(coroutine: Coroutine[Any, Any, _T], add: Callable[[float], None]) -> _T:
    """Run a coroutine and add the CPU seconds of its steps, not of what runs while it waits."""
    return await _Steps(coroutine, add)


async def metered_stream(
    stream: AsyncGenerator[bytes, None], add: Callable[[float], None]
) -> AsyncGenerator[bytes, None]:
    """Do the same for each item of a stream; closing this closes the stream."""
    try:
        while True:
            try:
                item = await _Steps(stream.__anext__(), add)
            except StopAsyncIteration:
                return
            yield item
    finally:
        await stream.aclose()


class _Steps(Generic[_T]):
    """Drives a coroutine step by step, with a look at the thread's CPU clock before and after each."""

    def __init__(self, coroutine: Awaitable[_T], add: Callable[[float], None]) -> None:
        self._coroutine: Any = coroutine
        self._add = add

    def __await__(self) -> Generator[Any, Any, _T]:
        steps = self._coroutine if hasattr(self._coroutine, "send") else self._coroutine.__await__()
        step = _sender(steps)
        spent = 0.0
        try:
            while True:
                started = time.thread_time()
                try:
                    waiting_for = step()
                except StopIteration as done:
                    return cast("_T", done.value)
                finally:
                    spent += time.thread_time() - started
                try:
                    yield waiting_for
                except BaseException as error:  # noqa: BLE001 - cancellation goes to the innermost await, like any other
                    step = _thrower(steps, error)
                else:
                    step = _sender(steps)
        finally:
            self._add(spent)


def _sender(steps: Any) -> Callable[[], Any]:
    return lambda: steps.send(None)


def _thrower(steps: Any, error: BaseException) -> Callable[[], Any]:
    return lambda: steps.throw(error)
