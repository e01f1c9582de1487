"""AReaL's reward for GSM8K: the last mathematical expression of a reply must mean the same as the reference."""

from __future__ import annotations

from typing import Any

from agentrl_areal.reward import get_math_verify_worker

__all__ = ["gsm8k_reward_fn"]


def gsm8k_reward_fn(
    prompt: Any,  # noqa: ARG001 (the arguments of every reward function)
    completions: Any,
    prompt_ids: Any,  # noqa: ARG001
    completion_ids: Any,  # noqa: ARG001
    answer: Any,
    **kwargs: Any,  # noqa: ARG001
) -> float:
    """Return 1.0 if reply and answer mean the same, else 0.0."""
    return get_math_verify_worker().verify(str(completions), str(answer))
