"""Counterpart of `areal.api.reward_api`: `AsyncRewardWrapper`, which runs a reward function in another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import agentrl_core
from agentrl_areal.utils.dynamic_import import import_from_string

__all__ = ["AsyncRewardWrapper"]


class AsyncRewardWrapper(agentrl_core.AsyncRewardWrapper):
    """Variant of `agentrl_core.AsyncRewardWrapper` that returns 0.0 at a timeout, as AReaL's does.

    The function may also be given by its dotted name, such as `my_rewards.exact`. After a timeout it is not tried
    again: its process was killed, and another one would compute the same.
    """

    def __init__(
        self,
        reward_fn: Callable[..., Any] | str,
        timeout_seconds: float = 15,
        max_workers: int | None = None,
        max_retries: int = 3,
    ) -> None:
        """Resolve and check the function. Raises `TypeError` if another process could not call it."""
        self.reward_fn = import_from_string(reward_fn) if isinstance(reward_fn, str) else reward_fn
        super().__init__(self.reward_fn, timeout_seconds, max_workers, max_retries, on_timeout="zero")
