"""The agents' event loop, on its own thread, protected from agents that block it, stop it or never end.

The main thread's waits are all bounded, and a watchdog thread names the line of user code that blocks the loop.
"""

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
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from agentrl_core.concurrency.threads import DaemonExecutor
from agentrl_core.config.invocation import near
from agentrl_core.errors import RunError
from agentrl_core.rollout.failures import is_users

if sys.platform == "win32":  # uvloop does not support Windows
    from asyncio import new_event_loop
else:
    from uvloop import new_event_loop

T = TypeVar("T")

logger = logging.getLogger(__name__)

TICK_S = 0.5
"""Seconds between two checks that the loop still turns."""
_NOTICE_AFTER_S = 1.0
_CLOSING_S = 3.0
"""Longest wait for a blocked loop while the run is closing."""
_ADVICE = (
    "use await, or a plain `def run`, which gets its own thread, or `rollout.agent.mode: subproc`, which runs agents "
    "in their own processes"
)
_MOST_CALLERS = 3
_OFTEN = 3
"""Number of looks at which a line of user code waits for something before it is told of: each wait may be short."""
_WAITING = ("socket.py", "subprocess.py", "selectors.py", "sync.py")
"""Files in which blocking clients wait: of Python for most of them (requests, urllib3), of httpcore for those of openai
and anthropic."""


class LoopThread:
    """Event loop on its own thread that runs coroutines for other threads; errors are raised where they wait.

    `workers` is the number of threads for the synchronous parts of agents. If user code blocks the loop, `notice` is
    called once, on the watchdog thread, with the lines at fault; the log gets the whole stack. A loop that is blocked
    for longer than `patience_s` makes all waits raise `RunError`.
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
        """Block until `work` is done, and return its result or raise its exception.

        Ctrl-C cancels `work`; so does any exception of `asked_to_stop`, which is called every `TICK_S`. Raises
        `RunError`, and cancels `work`, if the thread has ended, if the loop is blocked for longer than `patience_s`
        (None: the constructor's), or after `limit_s`.
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
        """Raise `RunError` if the loop is dead or blocked for too long."""
        if not self._thread.is_alive():
            raise RunError(f"the thread '{self._thread.name}' has ended")
        if self._blocked_s > patience_s:
            raise RunError(
                f"{self._place() or 'something'} has blocked the agents' event loop for more than {patience_s:g} s, "
                f"and every episode with it; {_ADVICE}"
            )

    def try_run(self, work: Coroutine[Any, Any, object], what: str, *, limit_s: float) -> None:
        """Run clean-up work; log a warning instead of raising if the loop is blocked or the work takes too long."""
        try:
            self.run(work, patience_s=_CLOSING_S, limit_s=limit_s)
        except RunError as error:
            logger.warning("%s: %s", what, error)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start `work` as a task of the loop, and return the task without waiting for its end."""

        async def begin() -> asyncio.Task[T]:
            return asyncio.get_running_loop().create_task(work)

        return self.run(begin())

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the thread so far; for a blocked loop, the last known value."""

        async def measure() -> None:
            self._tick()

        with contextlib.suppress(RunError):
            self.run(measure(), patience_s=_CLOSING_S)
        return self._cpu_seconds

    def close(self, *, grace_s: float = 5.0) -> None:
        """Cancel all tasks and end the thread; abandon tasks that go on after `grace_s`, and a loop that is blocked."""
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
        """Run the loop, and restart it if an agent's background task calls `sys.exit` or `loop.stop`."""
        while not self._closing.is_set():
            try:
                self._loop.run_forever()
            except BaseException:
                logger.exception("an exception reached the agents' event loop, which goes on")

    def _log_unseen(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log the exception of a background task that nobody awaits; the terminal belongs to the trackers."""
        # After the end of the run there is no log handler any more, and the record would reach the terminal.
        if not self._closing.is_set():
            logger.warning("on the agents' event loop: %s", context.get("message"), exc_info=context.get("exception"))

    def _tick(self) -> None:
        self._cpu_seconds = time.thread_time()
        self._ticked.set()

    def _watch(self) -> None:
        """Measure how long the loop has not turned, and report the task that blocks it.

        The measure adds up waits instead of comparing clocks, because a process that was suspended was not blocked.
        Blame falls only on one task that runs on for `_NOTICE_AFTER_S` while its thread has a core. On a busy machine,
        many short callbacks or a wait for a core delay the loop as well, and are nobody's fault.
        """
        told = False
        task: Callable[[], asyncio.Task[Any] | None] = _nothing
        lasting_s, waited_s = 0.0, 0.0
        seen: Counter[str] = Counter()
        while not self._closing.wait(TICK_S):
            if not told and (place := self._waits_at()):
                seen[place] += 1
                told = seen[place] == _OFTEN and self._tell()
            self._ticked.clear()
            with contextlib.suppress(RuntimeError):  # the loop may have been closed since
                self._loop.call_soon_threadsafe(self._tick)
            while not self._ticked.wait(TICK_S) and not self._closing.is_set():
                self._blocked_s += TICK_S
                running, waits_s = asyncio.current_task(self._loop), self._waits_for_a_core_s()
                lasting_s = lasting_s + TICK_S - (waits_s - waited_s) if running is task() else 0.0
                task, waited_s = _nothing if running is None else weakref.ref(running), waits_s
                del running  # keep no reference: only the weak one may outlive this turn
                if not told and lasting_s >= _NOTICE_AFTER_S:
                    told = self._tell()
            self._blocked_s, lasting_s = 0.0, 0.0

    def _tell(self) -> bool:
        """Report the user code that blocks the loop; return False if the stack has none."""
        frame = self._frame()
        places = _users_places(frame)
        if not places:
            return False
        callers = "".join(f", called by {place}" for place in places[1 : 1 + _MOST_CALLERS])
        message = f"{places[0]} blocks the event loop that all agents share{callers}; {_ADVICE}"
        logger.warning("%s. Stack:\n%s", message, "".join(traceback.format_stack(frame)))
        self._notice(message)
        return True

    def _waits_at(self) -> str:
        """Return the line of user code that waits in a blocking call now; empty if there is none."""
        frame = self._frame()
        path = "" if frame is None else frame.f_code.co_filename
        if Path(path).name not in _WAITING or is_users(path):
            return ""
        return next(iter(_users_places(frame)), "")

    def _waits_for_a_core_s(self) -> float:
        """Return how many seconds in total the thread was ready to run but had no core; 0 if the system does not say.

        The second number of Linux's schedstat, in nanoseconds.
        """
        try:
            told = Path(f"/proc/self/task/{self._thread.native_id}/schedstat").read_text(encoding="ascii")
        except OSError:
            return 0.0
        return int(told.split()[1]) / 1e9

    def _place(self) -> str:
        """Return the innermost line of user code that the thread is executing; empty if there is none."""
        return next(iter(_users_places(self._frame())), "")

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 (the documented way)


def _users_places(frame: FrameType | None) -> list[str]:
    """Return the lines of the user's own code in a stack, innermost first."""
    places = []
    while frame is not None:
        path = frame.f_code.co_filename
        if is_users(path):
            places.append(f"{near(Path(path))}:{frame.f_lineno} (in {frame.f_code.co_name})")
        frame = frame.f_back
    return places


def _check_time(end: float, limit_s: float) -> None:
    if time.monotonic() >= end:
        raise RunError(f"it took longer than {limit_s:g} s and was abandoned")


def _nothing() -> None:
    """Return None, like a weak reference to a task that is gone."""


async def _cancel_all(grace_s: float) -> None:
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    pending = (await asyncio.wait(others, timeout=grace_s))[1] if others else set()
    for task in pending:
        setattr(task, "_log_destroy_pending", False)  # noqa: B010 (as asyncio.gather does: the log has told of it)
        # Leak the task on purpose, so that it is not freed even when the interpreter ends. Freeing it closes its
        # coroutine, which hands control back to the agent, and an agent that catches everything in a loop would then
        # keep the process alive.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))
        logger.warning("%r went on for %g s after it was cancelled and is abandoned", task.get_coro(), grace_s)
    if not pending:
        await loop.shutdown_asyncgens()
