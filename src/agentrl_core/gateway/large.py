"""Do the work of large requests on threads, while the event loops answer everybody else.

Reading and tokenizing a body of some megabytes takes seconds. Two threads share them out by session: each session has
one of them at most, and its further requests wait behind those of all other sessions.
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
"""Of a body: to tokenize so much text takes about 10 ms, the trip to a thread and back 0.07 ms of CPU time."""

_THREADS = 2
"""Each may hold the interpreter's lock for 5 ms in a row, which the event loops wait for."""

_LONG_BYTES = 2**20
_LONGEST_REST_S = 0.1
_ALONE = threading.Lock()


def in_one_go(num_bytes: int, work: Callable[[], _T]) -> _T:
    """Return what `work` does, which keeps the interpreter's lock until it has gone through so many bytes.

    For 16 MiB that is 20 to 40 ms. Two threads could take turns in it without any event loop between them: so it is
    done by one thread at a time, which then rests for as long as it took.
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
    """The work of large requests. `add_cpu` is told the CPU seconds that the threads spend."""

    def __init__(self, add_cpu: Callable[[float], None]) -> None:
        self._add_cpu = add_cpu
        self._executor = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="agentrl-large")
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[tuple[concurrent.futures.Future[Any], Callable[[], Any]]]] = {}
        """By session; the one that has waited longest for its turn first."""
        self._served: set[str] = set()
        """Sessions that have a thread."""
        self._closed = False

    async def run(self, session: str, num_bytes: int, work: Callable[[], _T]) -> _T:
        """Return what `work` does for a request of a session: here if it is small, else when it is its turn."""
        if num_bytes < LARGE_BYTES:
            return work()
        future: concurrent.futures.Future[_T] = concurrent.futures.Future()
        with self._lock:
            self._check_open()
            self._waiting.setdefault(session, deque()).append((future, work))
            self._executor.submit(self._serve_next)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Let the work that has begun end, and refuse the rest."""
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
        """Do the next work of the session that has waited longest, unless each one that waits has a thread."""
        with self._lock:
            session = next((session for session in self._waiting if session not in self._served), None)
            if session is None:
                return
            waiting = self._waiting.pop(session)
            future, work = waiting.popleft()
            if waiting:
                self._waiting[session] = waiting  # behind all others
            self._served.add(session)
        if future.set_running_or_notify_cancel():
            started = time.thread_time()
            _settle(future, work)
            self._add_cpu(time.thread_time() - started)
        with self._lock:
            self._served.discard(session)
            if self._waiting and not self._closed:  # whoever was called for them may have found this session served
                self._executor.submit(self._serve_next)


def _settle(future: concurrent.futures.Future[Any], work: Callable[[], Any]) -> None:
    try:
        result = work()
    except RequestError as refusal:
        # Its frames hold texts of megabytes, and refer to themselves by it: they would stay until the next collection.
        refusal.__cause__ = refusal.__context__ = refusal.__traceback__ = None
        future.set_exception(refusal)
    except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
        future.set_exception(error)
    else:
        future.set_result(result)


def _closing() -> RequestError:
    return RequestError(503, "closing", "the gateway is closing")
