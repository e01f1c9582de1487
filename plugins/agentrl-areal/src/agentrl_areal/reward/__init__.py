"""Counterpart of `areal.reward`: AReaL's reward functions, and the comparison of mathematics that they share."""

from __future__ import annotations

import functools
import importlib
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from agentrl_areal.utils import logging

__all__ = [
    "MathVerifyWorker",
    "clevr_count_70k_reward_fn",
    "geometry3k_reward_fn",
    "get_math_verify_worker",
    "gsm8k_reward_fn",
]

T = TypeVar("T")
logger = logging.getLogger("RewardUtils")

_HOMES = {
    "gsm8k_reward_fn": "gsm8k",
    "geometry3k_reward_fn": "geometry3k",
    "clevr_count_70k_reward_fn": "clevr_count_70k",
}


class MathVerifyWorker:
    """Compares mathematical texts with math-verify, under a time limit of its own.

    The limits of math-verify itself work only on a main thread. `try_extract_without_anchor`: whether any number of a
    text may be its answer, or only one that the text marks as its answer. `precision`: decimal places to which numbers
    are rounded. `timeout`: seconds for one comparison; None for no limit.
    """

    def __init__(
        self,
        try_extract_without_anchor: bool = True,  # noqa: FBT001, FBT002 (AReaL's)
        precision: int = 6,
        timeout: float | None = 5.0,
    ) -> None:
        self.try_extract_without_anchor = try_extract_without_anchor
        self.precision = precision
        self.timeout = timeout

    def verify(self, response: str, ground_truth: str) -> float:
        """Return 1.0 if the texts mean the same, else 0.0; also 0.0 for texts that cannot be read or take too long."""
        try:
            return within(self.timeout, lambda: self._compared(response, ground_truth))
        except TooLongError:
            logger.warning("comparing %.200r with %.200r took more than %g s", response, ground_truth, self.timeout)
        except Exception:
            logger.warning("%.200r and %.200r cannot be compared", response, ground_truth, exc_info=True)
        return 0.0

    def _compared(self, response: str, ground_truth: str) -> float:
        from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify  # type: ignore[import-untyped]

        kinds = (
            ExprExtractionConfig(try_extract_without_anchor=self.try_extract_without_anchor),
            LatexExtractionConfig(),
        )
        gold, found = (parse(text, kinds, parsing_timeout=None) for text in (ground_truth, response))
        if not gold or not found:
            return 0.0
        return float(bool(verify(gold, found, float_rounding=self.precision, timeout_seconds=None)))


@functools.cache
def get_math_verify_worker() -> MathVerifyWorker:
    """Return the worker that all reward functions of this process share."""
    return MathVerifyWorker()


class TooLongError(BaseException):
    """A computation reached its time limit. A BaseException, so that no `except Exception` of a library catches it."""


def within(timeout_s: float | None, compute: Callable[[], T]) -> T:
    """Return `compute()`. Raises `TooLongError` if it takes longer than `timeout_s`.

    On a main thread, as in the processes of `AsyncRewardWrapper`, a signal interrupts the computation. On another
    thread it cannot be interrupted: it goes on in the background, and its result is dropped.
    """
    if timeout_s is None:
        return compute()
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        with _alarm(timeout_s):
            return compute()
    return _on_thread(timeout_s, compute)


@contextmanager
def _alarm(timeout_s: float) -> Iterator[None]:
    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _on_thread(timeout_s: float, compute: Callable[[], T]) -> T:
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(compute())
        except BaseException as error:  # noqa: BLE001 (raised where the result is waited for)
            future.set_exception(error)

    threading.Thread(target=work, name="agentrl-areal-reward", daemon=True).start()
    if not wait([future], timeout_s).done:
        raise TooLongError
    return future.result()


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
