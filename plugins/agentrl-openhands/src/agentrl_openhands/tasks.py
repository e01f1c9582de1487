"""What an OpenHands agent is given of a task, and whether its answer is right; needs the standard library alone."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|(?<![\w.])[-+]?\.\d+")


def as_text(data: Mapping[str, Any], input_key: str | None = None) -> str:
    """Return what the user says: the row's one user message, else its `query`; or the text that `input_key` names.

    Raises `ValueError` for a row with a longer conversation: an agent takes one text, and nothing is left out.
    """
    found = data.get(input_key) if input_key else data.get("messages") or data.get("query")
    if isinstance(found, str) and found:
        return found
    task = f"task '{data.get('id')}'"
    if not isinstance(found, list):
        missing = (
            f"no text '{input_key}', which the workflow's input_key names" if input_key else "no messages or query"
        )
        raise ValueError(f"{task} has {missing}; it has {', '.join(data)}")  # noqa: TRY004  # of data, not of a program
    said = [message for message in found if message.get("role") != "system"]
    if len(said) != 1 or said[0].get("role") != "user" or not isinstance(said[0].get("content"), str):
        raise ValueError(
            f"{task}: OpenHands takes one text, and the row's messages hold {len(said)} messages "
            "beside system prompts; give the row a `query`"
        )
    return str(said[0]["content"])


def same_number(answer: str, reference: str) -> bool:
    """Whether the last numbers in two texts are equal; False where one has none."""
    found, expected = _last_number(answer), _last_number(reference)
    return found is not None and expected is not None and math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9)


def _last_number(text: str) -> float | None:
    numbers = _NUMBER.findall(text)
    return float(numbers[-1].replace(",", "")) if numbers else None
