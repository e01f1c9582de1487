"""Daemon threads for blocking code of users: the interpreter can exit even if a call hangs."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


async def call_on_thread(function: Callable[[], T], *, name: str) -> T:
    """Call `function` on a new daemon thread with the caller's context.

    Not on a pool: a function that hangs would occupy a thread for ever, and enough of them would starve the rest.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Callable[[], T]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(outcome: Callable[[], T]) -> None:
        if not future.done():
            future.set_result(outcome)

    def work() -> None:
        try:
            outcome = functools.partial(_returned, context.run(function))
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            outcome = functools.partial(_raised, error)
        # The event loop may be closed: nothing waits for the result any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=work, name=name, daemon=True).start()
    return (await future)()


class DaemonExecutor(ThreadPoolExecutor):
    """Thread pool with up to `workers` daemon threads.

    The interpreter joins the threads of the standard library's pool at exit, so one hanging call keeps the process
    alive for ever. That pool is the base class all the same, because asyncio accepts no other executor as a loop's
    default. None of the base's own threads ever starts.
    """

    def __init__(self, workers: int, *, name: str) -> None:
        super().__init__(workers)
        self._workers, self._name = workers, name
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._daemons: list[threading.Thread] = []
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call `fn` as soon as a thread is free."""
        future: Future[T] = Future()
        call = functools.partial(fn, *args, **kwargs)
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._work.put(functools.partial(_carry_out, future, call))
            # The semaphore counts idle threads: a new thread starts only if none of them can take the call.
            if not self._idle.acquire(blocking=False) and len(self._daemons) < self._workers:
                name = f"{self._name}-{len(self._daemons)}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                self._daemons.append(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 (as inherited)
        """Accept no more calls; threads end when they are idle."""
        with self._lock:
            self._closed = True
            if cancel_futures:
                with contextlib.suppress(queue.Empty):
                    while True:
                        self._work.get_nowait()
            for _ in self._daemons:
                self._work.put(None)
        if wait:
            for thread in self._daemons:
                thread.join()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            # An idle thread must not keep the arguments of its last call alive.
            del work
            self._idle.release()


def _carry_out(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
        future.set_exception(error)
    else:
        future.set_result(result)


def _returned(value: T) -> T:
    return value


def _raised(error: BaseException) -> Any:
    raise error
