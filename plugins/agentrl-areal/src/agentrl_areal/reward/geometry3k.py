"""AReaL's reward for Geometry3K: the text in a reply's last brackets, else its last number, must mean the answer."""

from __future__ import annotations

import re
from typing import Any

from agentrl_areal.reward import get_math_verify_worker

__all__ = ["extract_answer", "geometry3k_reward_fn"]


def extract_answer(pred_str: str, use_last_number: bool = True) -> str:  # noqa: FBT001, FBT002 (AReaL's)
    """Return the text in the last `[…]`, else the last number without thousands separators, else an empty text."""
    if brackets := re.findall(r"\[([^\]]+)\]", pred_str):
        return str(brackets[-1])
    numbers = re.findall(r"-?\d*\.?\d+", pred_str.replace(",", "")) if use_last_number else []
    return str(numbers[-1]) if numbers else ""


def geometry3k_reward_fn(
    prompt: Any,  # noqa: ARG001 (the arguments of every reward function)
    completions: Any,
    prompt_ids: Any,  # noqa: ARG001
    completion_ids: Any,  # noqa: ARG001
    answer: Any,
    **kwargs: Any,  # noqa: ARG001
) -> float:
    """Return 1.0 if the two answers mean the same, else 0.0."""
    found = extract_answer(str(completions))
    expected = extract_answer(str(answer)) or str(answer)
    if not found or not expected:
        return 0.0
    return get_math_verify_worker().verify(found, expected)
