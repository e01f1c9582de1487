"""AReaL's reward for CLEVR-Count-70K: the number in a reply's last brackets must be the same text as the answer."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["clevr_count_70k_reward_fn", "extract_answer"]


def extract_answer(pred_str: str, data_name: str = "", use_last_number: bool = True) -> str:  # noqa: ARG001, FBT001, FBT002 (AReaL's)
    """Return the number in the last `[…]` that holds only a number; empty if there is none."""
    numbers = re.findall(r"\[([0-9\.]+)\]", pred_str)
    return str(numbers[-1]) if numbers else ""


def clevr_count_70k_reward_fn(
    prompt: Any,  # noqa: ARG001 (the arguments of every reward function)
    completions: str,
    prompt_ids: Any,  # noqa: ARG001
    completion_ids: Any,  # noqa: ARG001
    answer: str | None,
    **kwargs: Any,  # noqa: ARG001
) -> float:
    """Return 1.0 if the number is the answer, else 0.0."""
    return 0.0 if answer is None else float(extract_answer(completions).strip() == answer.strip())
