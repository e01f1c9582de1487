"""Parse and tokenize large request bodies on two threads, so that they do not block the event loops.

For a body of some megabytes this takes seconds. A session uses at most one of the threads at a time, and its further
requests queue behind those of all other sessions, so one session cannot occupy both.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl_core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

LARGE_BYTES = 32 * 2**10
"""Size from which a body counts as large: tokenizing so much text takes about 10 ms, the trip to a thread and back
0.07 ms of CPU time."""

_THREADS = 2
"""Number of threads; each may hold the interpreter's lock for 5 ms in a row, during which the event loops wait."""

_LONG_BYTES = 2**20
"""Size from which `in_one_go` lets one thread work at a time."""
_LONGEST_REST_S = 0.1
"""Longest rest of a thread after such work."""
_ALONE = threading.Lock()


def in_one_go(num_bytes: int, work: Callable[[], _T]) -> _T:
    """Run `work`, a C function that does not release the interpreter's lock while it reads `num_bytes`; blocks.

    For 16 MiB it holds the lock for 20 to 40 ms. Two threads could pass the lock to each other, and no event loop would
    run in between. So long work is done by one thread at a time, which then rests for as long as the work took.
    """
    if num_bytes < _LONG_BYTES:
        return work()
    with _ALONE:
        started = time.perf_counter()
        try:
            return work()
        finally:
            time.sleep(min(time.perf_counter() - started, _LONGEST_REST_S))


class LargeRequests:
    """Queue and threads for the work of large requests; `add_cpu` is called with the CPU seconds of each."""

    def __init__(self, add_cpu: Callable[[float], None]) -> None:
        self._add_cpu = add_cpu
        self._executor = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="agentrl-large")
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[tuple[concurrent.futures.Future[Any], Callable[[], Any]]]] = {}
        """Waiting work by session; the session whose turn is next comes first."""
        self._served: set[str] = set()
        """Sessions whose work is running on a thread."""
        self._closed = False

    async def run(self, session: str, num_bytes: int, work: Callable[[], _T]) -> _T:
        """Run a request's `work` and return its result: at once on this thread for a small body, else queued.

        `RequestError` (503) if the gateway is closing; exceptions of `work` are passed on.
        """
        if num_bytes < LARGE_BYTES:
            return work()
        # A future of `concurrent.futures`, as callers may be on different event loops.
        future: concurrent.futures.Future[_T] = concurrent.futures.Future()
        with self._lock:
            self._check_open()
            self._waiting.setdefault(session, deque()).append((future, work))
            self._executor.submit(self._serve_next)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Refuse the work that waits, and wait for the work that runs."""
        with self._lock:
            self._closed = True
            left = [future for waiting in self._waiting.values() for future, _ in waiting]
            self._waiting.clear()
        for future in left:
            if future.set_running_or_notify_cancel():
                future.set_exception(_closing())
        self._executor.shutdown()

    def _check_open(self) -> None:
        if self._closed:
            raise _closing()

    def _serve_next(self) -> None:
        """Run the next work of the session that waited longest; do nothing if every waiting session has a thread."""
        with self._lock:
            session = next((session for session in self._waiting if session not in self._served), None)
            if session is None:
                return
            waiting = self._waiting.pop(session)
            future, work = waiting.popleft()
            if waiting:
                # Reinserted at the dictionary's end, so behind all other sessions.
                self._waiting[session] = waiting
            self._served.add(session)
        # False if the client disconnected while the work was waiting: then it is not begun.
        if future.set_running_or_notify_cancel():
            started = time.thread_time()
            _settle(future, work)
            self._add_cpu(time.thread_time() - started)
        with self._lock:
            self._served.discard(session)
            # The calls submitted for this session's waiting work may have returned at once, as it had this thread.
            if self._waiting and not self._closed:
                self._executor.submit(self._serve_next)


def _settle(future: concurrent.futures.Future[Any], work: Callable[[], Any]) -> None:
    try:
        result = work()
    except RequestError as refusal:
        # The traceback's frames hold texts of megabytes and refer back to the exception. This cycle would keep them
        # in memory until the next garbage collection.
        refusal.__cause__ = refusal.__context__ = refusal.__traceback__ = None
        future.set_exception(refusal)
    except BaseException as error:  # noqa: BLE001 - raised again by the caller, which waits for the future
        future.set_exception(error)
    else:
        future.set_result(result)


def _closing() -> RequestError:
    return RequestError(503, "closing", "the gateway is closing")
