"""An event loop on a thread of its own, and how the main thread waits for it without depending on agents' manners."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ctypes
import logging
import math
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from agentrl_core.concurrency.threads import DaemonExecutor
from agentrl_core.errors import RunError
from agentrl_core.rollout.failures import is_users

if sys.platform == "win32":  # there is no uvloop for it
    from asyncio import new_event_loop
else:
    from uvloop import new_event_loop

T = TypeVar("T")

logger = logging.getLogger(__name__)

TICK_S = 0.5
"""Between two looks at whether the loop still turns."""
_NOTICE_AFTER_S = 1.0
_CLOSING_S = 3.0
"""How long a blocked loop is waited for once nothing more is wanted of it."""
_ADVICE = (
    "use await, or a plain `def run`, which gets a thread of its own, or `rollout.agent.mode: subproc`, which gives "
    "agents processes of their own"
)
_MOST_CALLERS = 3


class LoopThread:
    """Runs coroutines for other threads; every failure surfaces where the result is awaited.

    `workers`: threads for the synchronous parts of agents. `notice` is told once, on another thread, which lines of
    the user's code keep the loop from turning (the log has the whole stack); after `patience_s` of that whoever waits
    for the loop gets a `RunError`.
    """

    def __init__(
        self,
        name: str,
        *,
        workers: int,
        notice: Callable[[str], None] = lambda _: None,
        patience_s: float = math.inf,
    ) -> None:
        self._notice, self._patience_s = notice, patience_s
        self._loop = new_event_loop()
        self._loop.set_default_executor(DaemonExecutor(workers, name=f"{name}-worker"))
        self._loop.set_exception_handler(self._log_unseen)
        self._closing = threading.Event()
        self._ticked = threading.Event()
        self._blocked_s = 0.0
        self._cpu_seconds = 0.0
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch, name=f"{name}-watch", daemon=True).start()

    def run(
        self,
        work: Coroutine[Any, Any, T],
        *,
        patience_s: float | None = None,
        limit_s: float = math.inf,
        asked_to_stop: Callable[[], None] = lambda: None,
    ) -> T:
        """Block until `work` is done; Ctrl-C cancels it, and so does `asked_to_stop` by raising something.

        Raises `RunError` where the thread has ended, where the loop is blocked for longer than `patience_s` (as
        a rule, that of the constructor), and after `limit_s`; `work` is cancelled then.
        """
        patience_s = self._patience_s if patience_s is None else patience_s
        if not self._thread.is_alive():
            work.close()
            self._check(patience_s)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        end = time.monotonic() + limit_s
        try:
            while not concurrent.futures.wait([future], timeout=max(0.0, min(TICK_S, end - time.monotonic()))).done:
                asked_to_stop()
                self._check(patience_s)
                _check_time(end, limit_s)
        except BaseException:
            future.cancel()
            raise
        return future.result()

    def _check(self, patience_s: float) -> None:
        """Raise where waiting is in vain."""
        if not self._thread.is_alive():
            raise RunError(f"the thread '{self._thread.name}' has ended")
        if self._blocked_s > patience_s:
            raise RunError(
                f"{self._place() or 'something'} has blocked the agents' event loop for more than {patience_s:g} s, "
                f"and every episode with it; {_ADVICE}"
            )

    def try_run(self, work: Coroutine[Any, Any, object], what: str, *, limit_s: float) -> None:
        """Run what belongs to the end; where the loop does not let it come to that, the log says so."""
        try:
            self.run(work, patience_s=_CLOSING_S, limit_s=limit_s)
        except RunError as error:
            logger.warning("%s: %s", what, error)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin `work` as a task of the loop, without waiting for its end."""

        async def begin() -> asyncio.Task[T]:
            return asyncio.get_running_loop().create_task(work)

        return self.run(begin())

    def cpu_seconds(self) -> float:
        """CPU seconds of the thread so far; of a blocked loop, what was known last."""

        async def measure() -> None:
            self._tick()

        with contextlib.suppress(RunError):
            self.run(measure(), patience_s=_CLOSING_S)
        return self._cpu_seconds

    def close(self, *, grace_s: float = 5.0) -> None:
        """Cancel what still runs, and end the thread; what goes on after `grace_s`, or blocks, is left behind."""
        if self._closing.is_set():
            return
        self.try_run(_cancel_all(grace_s), "closing the agents' event loop", limit_s=2 * grace_s)
        self._closing.set()
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1.0)
        if not self._thread.is_alive():
            self._loop.close()

    def _serve(self) -> None:
        """Keep the loop turning: neither `sys.exit` in an agent's background task nor `loop.stop()` ends the run."""
        while not self._closing.is_set():
            try:
                self._loop.run_forever()
            except BaseException:
                logger.exception("raised on the agents' event loop, which goes on")

    def _log_unseen(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log what an agent's background task raised and nobody awaited: the terminal belongs to the trackers."""
        if not self._closing.is_set():  # after the end there is no log, and it would come to the terminal
            logger.warning("on the agents' event loop: %s", context.get("message"), exc_info=context.get("exception"))

    def _tick(self) -> None:
        self._cpu_seconds = time.thread_time()
        self._ticked.set()

    def _watch(self) -> None:
        """Measure for how long the loop has not turned, and tell who is at fault.

        The measure adds up waits instead of comparing clocks: a process that was stopped was not blocked. At fault is
        one task that goes on although its thread has a core: on a busy machine the short turns of many, and those that
        wait for a core, hold up the loop, too.
        """
        told = False
        task: Callable[[], asyncio.Task[Any] | None] = _nothing
        lasting_s, waited_s = 0.0, 0.0
        while not self._closing.wait(TICK_S):
            self._ticked.clear()
            with contextlib.suppress(RuntimeError):  # the loop was just closed
                self._loop.call_soon_threadsafe(self._tick)
            while not self._ticked.wait(TICK_S) and not self._closing.is_set():
                self._blocked_s += TICK_S
                running, waits_s = asyncio.current_task(self._loop), self._waits_for_a_core_s()
                lasting_s = lasting_s + TICK_S - (waits_s - waited_s) if running is task() else 0.0
                task, waited_s = _nothing if running is None else weakref.ref(running), waits_s
                del running  # it is kept alive by nobody here
                if not told and lasting_s >= _NOTICE_AFTER_S:
                    told = self._tell()
            self._blocked_s, lasting_s = 0.0, 0.0

    def _tell(self) -> bool:
        """Name the user's code that blocks the loop; return whether there is any."""
        frame = self._frame()
        places = _users_places(frame)
        if not places:
            return False
        callers = "".join(f", called by {place}" for place in places[1 : 1 + _MOST_CALLERS])
        message = f"{places[0]} blocks the event loop that all agents share{callers}; {_ADVICE}"
        logger.warning("%s. It was at:\n%s", message, "".join(traceback.format_stack(frame)))
        self._notice(message)
        return True

    def _waits_for_a_core_s(self) -> float:
        """Return for how long the thread could have run and had no core, so far; 0 where the system does not say."""
        try:
            told = Path(f"/proc/self/task/{self._thread.native_id}/schedstat").read_text(encoding="ascii")
        except OSError:
            return 0.0
        return int(told.split()[1]) / 1e9

    def _place(self) -> str:
        """Return what the thread is at in the user's own code, the innermost frame; empty where it is elsewhere."""
        return next(iter(_users_places(self._frame())), "")

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 (the documented way)


def _users_places(frame: FrameType | None) -> list[str]:
    """Return the lines of the user's own code in a stack, innermost first."""
    places = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if is_users(path):
            shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            places.append(f"{shown}:{frame.f_lineno} (in {frame.f_code.co_name})")
        frame = frame.f_back
    return places


def _check_time(end: float, limit_s: float) -> None:
    if time.monotonic() >= end:
        raise RunError(f"it took longer than {limit_s:g} s and is left behind")


def _nothing() -> None:
    """Stand for no task, as a reference to one that has gone does."""


async def _cancel_all(grace_s: float) -> None:
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    pending = (await asyncio.wait(others, timeout=grace_s))[1] if others else set()
    for task in pending:
        setattr(task, "_log_destroy_pending", False)  # noqa: B010 (as asyncio.gather does: the log has told of it)
        # Never freed, not even when the interpreter ends: closing its coroutine would hand control back to it, and
        # an agent that catches everything in a loop would then keep the process alive.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))
        logger.warning("%r went on for %g s after it was cancelled and is left behind", task.get_coro(), grace_s)
    if not pending:
        await loop.shutdown_asyncgens()
