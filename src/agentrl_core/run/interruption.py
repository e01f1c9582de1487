"""Ctrl-C and SIGTERM during a run: waiting ends at once, a change of the weights first comes to its end."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from agentrl_core.errors import Interrupted, Terminated

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Whether one run was asked to stop; made where the signals come, asked where the run waits and steps.

    The first signal raises `KeyboardInterrupt` where the run is, but for a step that has begun to change the weights:
    that one is finished first, so that weights, store and step agree. The second raises it wherever that may be.
    """

    def __init__(self) -> None:
        self._direct = True
        self._held = self._pending = False
        self.broke_step = False
        """Whether a step that had begun to change the weights was ended in its midst: they are of no step any more."""
        self._count = 0
        self._signal = signal.SIGINT

    def hold(self) -> None:
        """Let what begins now come to its end; inside of `whole_step`."""
        self._held = True

    @contextmanager
    def whole_step(self) -> Iterator[None]:
        """Raise behind a step what came after its `hold`."""
        self.check()
        try:
            yield
        finally:
            self._held = False
        self.check()

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if the run was asked to stop and was not told so far."""
        if self._pending and not self._held:
            self._pending = False
            raise KeyboardInterrupt

    def run(self, work: Callable[[Interruption], T]) -> T:
        """Do a run's blocking work; where an event loop runs on this thread, a notebook's for one, on another.

        A run that was interrupted ends with `Interrupted`, which is a `KeyboardInterrupt`, or with `Terminated`.
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
            thread.shutdown(wait=False)  # after a second Ctrl-C the run is left to itself

    def _handle(self, number: int, _frame: object) -> None:
        self._count += 1
        if self._count == 1:
            self._signal = signal.Signals(number)
            self._pending = True
            if not self._direct:
                return  # whoever waits on the other thread asks
            self.check()
        else:
            self.broke_step = self.broke_step or self._held
            self._held = self._pending = False
            raise KeyboardInterrupt

    @contextmanager
    def _handling_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may
            return
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        ours = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]  # nohup stays
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
