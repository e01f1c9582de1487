"""Several models in order: each asked with retries, the next where one fails, all of it within one time limit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.http import Backoff
from agentrl_judge.model import CallError, JudgeModel

if TYPE_CHECKING:
    from agentrl_judge.verdict import Opinion

LONGEST_WAIT_S = 30.0
"""Between two calls of one model; one that wants more is passed over."""

_PROBE_S = 1.0
"""How long is waited for another episode's call to tell whether a model is up again."""
_LEFT_ALONE = CallError("down", "left alone after several failures in a row", again=True)
_JITTER = 0.5
"""Waits differ by up to this share, so that episodes that failed together do not come back together."""


class NoVerdictError(Exception):
    """No model gave a verdict; `reason` is `judge_down`, `judge_garbage` or `judge_timeout`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


@attrs.frozen(kw_only=True)
class Patience:
    """How long the models are asked."""

    timeout_s: float
    """For one verdict: all calls of all models, and what lies between them."""
    max_retries: int
    """Further calls of one model after its first."""
    retry_delay_s: float
    """Before the second call."""
    backoff_factor: float
    """Factor from each wait to the next."""


@attrs.define(kw_only=True, eq=False)
class Panel:
    """The models of one judge, the first of them preferred."""

    models: Sequence[JudgeModel]
    patience: Patience
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    uniform: Callable[[float, float], float] = random.uniform

    async def ask(self, compose: Callable[[], list[dict[str, str]]], calls: list[dict[str, Any]]) -> Opinion:
        """Return the first verdict; `compose` makes the messages anew for each call, `calls` is told of each.

        A model that is left alone for its failures is waited for where no other answers: an outage that passes in
        time costs no episode. Raises `NoVerdictError`, at the latest when the time is up.
        """
        failures: dict[str, CallError] = {}
        attempts = dict.fromkeys(range(len(self.models)), 0)
        try:
            async with asyncio.timeout(self.patience.timeout_s) as limit:
                while attempts:
                    for number in tuple(attempts):
                        opinion = await self._ask_one(number, compose, calls, failures, attempts)
                        if opinion is not None:
                            return opinion
                    if attempts:  # of those that were left alone
                        wait_s = min(self.models[number].breaker.wait_s for number in attempts)
                        await self.sleep((wait_s or _PROBE_S) * self.uniform(1, 1 + _JITTER))
        except TimeoutError as error:
            if not limit.expired():
                raise
            told = f"no verdict within timeout_s = {self.patience.timeout_s:g} s" + _told(failures, "; ")
            raise NoVerdictError("judge_timeout" if not failures else _reason(failures), told) from error
        raise NoVerdictError(_reason(failures), _told(failures, ""))

    async def _ask_one(
        self,
        number: int,
        compose: Callable[[], list[dict[str, str]]],
        calls: list[dict[str, Any]],
        failures: dict[str, CallError],
        attempts: dict[int, int],
    ) -> Opinion | None:
        """Ask a model as often as it may be; it stays in `attempts` only if it is to be left alone for now."""
        model = self.models[number]
        label = model.settings.label
        while True:
            async with model.place():
                if not model.breaker.admit():
                    failures.setdefault(label, _LEFT_ALONE)
                    return None
                try:
                    return await model.ask(compose(), calls)
                except CallError as error:
                    failures[label] = failure = error
            wait_s = self._wait_s(attempts[number], failure)
            attempts[number] += 1
            if not failure.again or attempts[number] > self.patience.max_retries or wait_s > LONGEST_WAIT_S:
                del attempts[number]
                return None
            await self.sleep(wait_s)

    def _wait_s(self, attempt: int, failure: CallError) -> float:
        if failure.kind == "garbage":
            return 0.0  # the server is well: another prompt, with another boundary, may do
        patience = self.patience
        backoff = Backoff(
            first_s=patience.retry_delay_s,
            factor=patience.backoff_factor,
            longest_s=LONGEST_WAIT_S,
            jitter=_JITTER,
            uniform=self.uniform,
        )
        return backoff.wait_s(attempt, failure.wait_s)


def _reason(failures: dict[str, CallError]) -> str:
    kinds = {error.kind for error in failures.values()}
    return f"judge_{next((kind for kind in ('garbage', 'timeout') if kind in kinds), 'down')}"


def _told(failures: dict[str, CallError], before: str) -> str:
    """Say of each model what its last failure was."""
    return before + "; ".join(f"{label}: {error}" for label, error in failures.items()) if failures else ""
