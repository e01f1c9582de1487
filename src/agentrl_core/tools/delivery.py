"""Send one request to a tool server, within a deadline, and repeat it where that does no harm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

import attrs

from agentrl_core.errors import DeliveryUnknownError, ToolNotSentError
from agentrl_core.http.backoff import Backoff, RetryPolicy
from agentrl_core.types import ToolOutcome

T = TypeVar("T")

BACKOFF = Backoff(first_s=0.1, longest_s=5.0)
"""Waits between the tries of a call: a server that restarts is back in a second or two."""


@attrs.frozen(kw_only=True)
class Delivery(Generic[T]):
    """End of a request: a result, or the reason why there is none."""

    outcome: ToolOutcome
    """`OK`, `NOT_SENT` or `DELIVERY_UNKNOWN`."""
    attempts: int
    """Number of times that the request was sent, or tried to be."""
    result: T | None = None
    error: str = ""
    """Message of the last failed attempt."""


class Strays:
    """Requests that were given up but have not ended; the event loop itself holds tasks weakly."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def give_up(self, task: asyncio.Task[Any]) -> None:
        """Cancel a request without waiting for its end; what it raises then interests nobody."""
        task.cancel()
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def ended(self, *, limit_s: float) -> int:
        """Wait until all have ended, at most `limit_s`; return the number of those that still run."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=limit_s)
        return len(self._tasks)


async def deliver(
    send: Callable[[float], Coroutine[Any, Any, T]],
    *,
    repeatable: bool,
    timeout_s: float,
    retries: RetryPolicy,
    strays: Strays,
    clock: Callable[[], float] = time.monotonic,
) -> Delivery[T]:
    """Await `send(time left)` until it returns, at most `retries.max_retries` times more, and `timeout_s` in all.

    A request that was certainly not sent is repeated; one whose delivery is unknown only if it is `repeatable`. The
    outcome is `DELIVERY_UNKNOWN` if any of the attempts may have arrived. Other exceptions of `send` are raised.
    """
    end = clock() + timeout_s
    attempts, outcome = 0, ToolOutcome.NOT_SENT
    while True:
        attempts += 1
        try:
            left = end - clock()
            result = await _within(send(left), left, strays)
        except ToolNotSentError as error:
            failure: Exception = error
        except (DeliveryUnknownError, TimeoutError) as error:
            failure, outcome = error, ToolOutcome.DELIVERY_UNKNOWN
        else:
            return Delivery(outcome=ToolOutcome.OK, attempts=attempts, result=result)
        wait_s = retries.wait_s(attempts - 1)
        may_repeat = repeatable or outcome is ToolOutcome.NOT_SENT
        if not may_repeat or wait_s is None or clock() + wait_s >= end:
            return Delivery(outcome=outcome, attempts=attempts, error=str(failure) or type(failure).__name__)
        await retries.sleep(wait_s)


async def _within(work: Coroutine[Any, Any, T], timeout_s: float, strays: Strays) -> T:
    """Await `work`, and give it up after `timeout_s`, even if it ignores its cancellation."""
    # Not `asyncio.wait_for`: after its timeout it waits without a limit for the cancelled task to end.
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    finally:
        if not task.done():
            strays.give_up(task)
    if not task.done():
        raise TimeoutError(f"no answer within {timeout_s:.3g} s")
    if task.cancelled():
        raise DeliveryUnknownError("the server cancelled the request itself")
    return task.result()


def retry_policy(retries: int, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> RetryPolicy:
    """Return the policy for `tools.retries`."""
    return RetryPolicy(max_retries=retries, backoff=BACKOFF, sleep=sleep)


async def all_or_first_error(works: Iterable[Coroutine[Any, Any, T]], tasks: set[asyncio.Task[Any]]) -> list[T]:
    """Await all at the same time; the first error is raised at once, and cancels the others.

    `tasks` holds those that still run.
    """
    started = [asyncio.create_task(work) for work in works]
    for task in started:
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    try:
        return await asyncio.gather(*started)
    finally:
        for task in started:
            task.cancel()
