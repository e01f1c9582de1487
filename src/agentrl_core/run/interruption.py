"""Handling of Ctrl-C, SIGTERM and SIGHUP during a run.

A run that waits or samples ends at once. A step that has begun to change the weights is finished first, so that the
weights, the store and the step number agree and can be saved. A second signal ends even that step.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from agentrl_core.concurrency.critical import postpone
from agentrl_core.errors import Interrupted, Terminated

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Stop request of one run: set by the signal handler, checked where the run waits and between steps.

    The first signal raises `KeyboardInterrupt` at once, or after the current step if that has called `hold`. The
    second signal raises it in any case.
    """

    def __init__(self) -> None:
        self._direct = True
        self._held = self._pending = False
        self.broke_step = False
        """True if a second signal ended a step that had begun to change the weights; they must not be saved then."""
        self._count = 0
        self._signal = signal.SIGINT

    def hold(self) -> None:
        """Postpone the first signal to the end of the step; called inside `whole_step`, before the weights change."""
        self._held = True

    @contextmanager
    def whole_step(self) -> Iterator[None]:
        """Run one step, and raise after it a stop request that came since its `hold`."""
        self.check()
        try:
            yield
        finally:
            self._held = False
        self.check()

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if there is a stop request that nobody has raised yet and no step holds."""
        if self._pending and not self._held:
            self._pending = False
            raise KeyboardInterrupt

    def ask(self) -> None:
        """Request the same end as SIGTERM does, from any thread; it comes where the run waits, or after its step."""
        self._signal = signal.SIGTERM
        self._pending = True

    def run(self, work: Callable[[Interruption], T]) -> T:
        """Do a run's blocking work; on another thread if this one has a running event loop, as in a notebook.

        Raises `Interrupted`, which is a `KeyboardInterrupt`, after Ctrl-C, and `Terminated`, which is a `SystemExit`,
        after another signal.
        """
        try:
            with self._handling_signals():
                return self._on_a_thread(work) if _in_event_loop() else work(self)
        except KeyboardInterrupt as stop:
            message = str(stop) or "interrupted"
            if self._signal == signal.SIGINT:
                raise Interrupted(message) from None
            raise Terminated(message, 128 + self._signal) from None

    def _on_a_thread(self, work: Callable[[Interruption], T]) -> T:
        self._direct = False
        thread = ThreadPoolExecutor(1, thread_name_prefix="trainer")
        try:
            return thread.submit(work, self).result()
        finally:
            # Do not wait: after a second Ctrl-C the run's thread may still be busy, and the user wants to leave.
            thread.shutdown(wait=False)

    def _handle(self, number: int, _frame: object) -> None:
        if postpone(functools.partial(self._handle, number, None)):
            return
        self._count += 1
        if self._count == 1:
            self._signal = signal.Signals(number)
            self._pending = True
            if not self._direct:
                # The handler runs on the main thread, and an exception here would not reach the run's thread. That
                # thread asks by `check` wherever it waits.
                return
            self.check()
        else:
            self.broke_step = self.broke_step or self._held
            self._held = self._pending = False
            raise KeyboardInterrupt

    @contextmanager
    def _handling_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # Python lets only the main thread install signal handlers
            return
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        # A signal that is ignored stays ignored: nohup means that a closed terminal must not end the run.
        ours = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
        for number in ours:
            signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number in ours:
                signal.signal(number, before[number])


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
