"""Reward functions to be awaited, with AReaL's outcome of a timeout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import agentrl_core
from agentrl_areal.utils.dynamic_import import import_from_string

__all__ = ["AsyncRewardWrapper"]


class AsyncRewardWrapper(agentrl_core.AsyncRewardWrapper):
    """`agentrl_core.AsyncRewardWrapper`, but a timeout gives 0.0, and the function may be named: `my_rewards.exact`.

    A timeout is not tried again: the function's process was killed, and would compute the same.
    """

    def __init__(
        self,
        reward_fn: Callable[..., Any] | str,
        timeout_seconds: float = 15,
        max_workers: int | None = None,
        max_retries: int = 3,
    ) -> None:
        """Check the function: `TypeError` where no other process could call it."""
        self.reward_fn = import_from_string(reward_fn) if isinstance(reward_fn, str) else reward_fn
        super().__init__(self.reward_fn, timeout_seconds, max_workers, max_retries, on_timeout="zero")
