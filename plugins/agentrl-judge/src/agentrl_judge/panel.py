"""Failover over the models of a judge: retry a model, go to the next one, give up at the time limit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.http import Backoff, RetryPolicy
from agentrl_judge.model import CallError, JudgeModel

if TYPE_CHECKING:
    from agentrl_judge.verdict import Opinion

LONGEST_WAIT_S = 30.0
"""Longest wait between two calls of one model; if its server asks for more, the next model is asked."""

_PROBE_S = 1.0
"""Wait for another episode's probe to find out whether a model is up again."""
_LEFT_ALONE = CallError("down", "not called after several failures in a row", again=True)
_JITTER = 0.5
"""Random share of each wait, so that episodes that failed together do not all come back at the same time."""


class NoVerdictError(Exception):
    """No model gave a verdict; `reason` is `judge_down`, `judge_garbage` or `judge_timeout`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


@attrs.frozen(kw_only=True)
class Patience:
    """Limits on time and retries for one verdict."""

    timeout_s: float
    """Time for all calls of all models, with the waits and queues between them."""
    max_retries: int
    """Further calls of one model after its first one."""
    retry_delay_s: float
    """Wait before the second call."""
    backoff_factor: float
    """Factor from each wait to the next."""


@attrs.define(kw_only=True, eq=False)
class Panel:
    """Models of one judge in order of preference, with the rules by which they are asked."""

    models: Sequence[JudgeModel]
    patience: Patience
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    uniform: Callable[[float, float], float] = random.uniform

    async def ask(self, compose: Callable[[], list[dict[str, str]]], calls: list[dict[str, Any]]) -> Opinion:
        """Return the first verdict. `compose` returns the messages for each call; `calls` gets an entry per request.

        If only models with an open breaker are left, wait for them: an outage shorter than `timeout_s` costs no
        episode. Raises `NoVerdictError` if all models have failed, or at the time limit.
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
                    # Only models with an open breaker are left in `attempts`.
                    if attempts:
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
        """Ask a model until it gives a verdict or its retries are used up.

        The model then leaves `attempts`; it stays only if its breaker is open, to be asked later.
        """
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
            wait_s = self._retries().wait_s(attempts[number], failure.wait_s)
            attempts[number] += 1
            if not failure.again or wait_s is None:
                del attempts[number]
                return None
            # After garbage the server is up, and the next prompt differs in its boundary: no wait.
            await self.sleep(0.0 if failure.kind == "garbage" else wait_s)

    def _retries(self) -> RetryPolicy:
        patience = self.patience
        backoff = Backoff(
            first_s=patience.retry_delay_s,
            factor=patience.backoff_factor,
            longest_s=LONGEST_WAIT_S,
            jitter=_JITTER,
            uniform=self.uniform,
        )
        return RetryPolicy(max_retries=patience.max_retries, backoff=backoff, longest_wait_s=LONGEST_WAIT_S)


def _reason(failures: dict[str, CallError]) -> str:
    kinds = {error.kind for error in failures.values()}
    return f"judge_{next((kind for kind in ('garbage', 'timeout') if kind in kinds), 'down')}"


def _told(failures: dict[str, CallError], before: str) -> str:
    """Return a text with the last failure of each model."""
    return before + "; ".join(f"{label}: {error}" for label, error in failures.items()) if failures else ""
