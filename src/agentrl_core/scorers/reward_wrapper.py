"""AReaL's `AsyncRewardWrapper`: await a sync or async reward function with a time limit and retries."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any, Literal

from agentrl_core.concurrency.processes import CallTimeoutError, pack, run_in_process
from agentrl_core.errors import EpisodeError
from agentrl_core.scorers.call import finite_number

logger = logging.getLogger(__name__)


class AsyncRewardWrapper:
    """Reward function that can be awaited. All wrappers share worker processes, so one may be built in each episode.

        class MathWorkflow(RolloutWorkflow):
            def __init__(self, reward_fn):
                self.reward = AsyncRewardWrapper(reward_fn, timeout_seconds=15)

            async def arun_episode(self, engine, data):
                ...
                return await self.reward(prompt, completion, **data)

    A sync function runs in a process of its own (see `agentrl_core.concurrency.processes`) that is killed at the
    time limit, an async one on the event loop. After an exception the function is called again, up to `max_retries`
    times, and then the exception is raised. A timeout is not retried: the episode is rejected (`reward_timeout`),
    or, with `on_timeout="zero"`, the reward is 0.0 as in AReaL.
    """

    def __init__(
        self,
        reward_fn: Callable[..., Any],
        timeout_seconds: float = 15,
        max_workers: int | None = None,
        max_retries: int = 3,
        *,
        on_timeout: Literal["reject", "zero"] = "reject",
    ) -> None:
        """Check the function: `TypeError` if it is sync and cannot be sent to another process."""
        if timeout_seconds <= 0 or max_retries < 0 or on_timeout not in ("reject", "zero"):
            raise ValueError(
                "expected timeout_seconds above 0, max_retries of at least 0 and on_timeout 'reject' or 'zero', found "
                f"{timeout_seconds}, {max_retries} and {on_timeout!r}"
            )
        self._function = reward_fn
        self._is_async = inspect.iscoroutinefunction(reward_fn) or inspect.iscoroutinefunction(
            getattr(reward_fn, "__call__", None)  # noqa: B004 (reads `__call__`, does not test for it)
        )
        if not self._is_async:
            # Fails here, not in the first episode.
            pack(reward_fn)
        self._name = getattr(reward_fn, "__qualname__", type(reward_fn).__qualname__)
        self._timeout_s, self._max_workers = timeout_seconds, max_workers
        self._max_retries, self._on_timeout = max_retries, on_timeout

    async def __call__(self, *args: Any, **kwargs: Any) -> float:
        """Return the reward for these arguments; `EpisodeError` if it takes too long or is not a finite number."""
        call = functools.partial(self._function, *args, **kwargs)
        for attempt in range(self._max_retries + 1):
            try:
                return finite_number(await self._called(call))
            except (CallTimeoutError, TimeoutError) as error:
                return self._timed_out(error)
            except EpisodeError:
                # Not retried: the function returned something other than a finite number, or rejected the episode.
                raise
            except Exception as error:
                if attempt == self._max_retries:
                    raise
                logger.info("calling reward function %s again after %s: %s", self._name, type(error).__name__, error)
        raise AssertionError("the last attempt returned or raised")

    async def _called(self, call: Callable[[], Any]) -> Any:
        if not self._is_async:
            return await run_in_process(call, timeout_s=self._timeout_s, max_workers=self._max_workers)
        async with asyncio.timeout(self._timeout_s):
            return await call()

    def _timed_out(self, error: Exception) -> float:
        if self._on_timeout == "zero":
            return 0.0
        raise EpisodeError(
            "reward_timeout",
            f"reward function {self._name} gave no reward within timeout_seconds = {self._timeout_s:g}: bound its "
            'work, raise the limit, or choose on_timeout="zero"',
        ) from error
