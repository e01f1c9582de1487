"""Encode a workflow's return value as JSON; `worker_messages` of the run reads it."""

from __future__ import annotations

import contextlib
import math
from typing import Any

from .frames import MAX_ANSWER_BYTES

DEEPEST_VALUE = 4
"""Levels of nested dicts in a return value that are sent as dicts; per-turn rewards need one."""
LONGEST_REPR = 200
"""Characters of names and of the `repr` of a value that are sent."""

_MOST_ITEMS = MAX_ANSWER_BYTES // 16
"""Items of a dict that are sent. Each takes at least 16 bytes, so a dict of more items would exceed
MAX_ANSWER_BYTES."""
_LARGEST_INT = 2**53
"""Larger integers are sent as floats, which hold every integer up to this one exactly."""


def plain(value: Any, depth: int = 0) -> dict[str, Any]:
    """Encode a return value as JSON: a number, a dict's pairs, an `Answer`; of anything else its type and `repr`."""
    if not isinstance(value, (bool, int, float)) and getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        # A scalar of numpy or torch.
        value = value.item()
    if isinstance(value, int) and abs(value) > _LARGEST_INT:
        try:
            value = float(value)
        except OverflowError:
            value = float("inf") if value > 0 else float("-inf")
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no NaN and no infinities.
        return {"number": str(float(value))}
    if value is None or isinstance(value, (bool, int, float)):
        return {"number": value}
    is_long = isinstance(value, (str, bytes, bytearray, dict, list, tuple)) and len(value) > _MOST_ITEMS
    if not is_long and hasattr(value, "keys") and hasattr(value, "__getitem__") and depth < DEEPEST_VALUE:
        return {"pairs": [[_key(key), plain(value[key], depth + 1)] for key in value]}
    if type(value).__name__ == "Answer" and isinstance(getattr(value, "text", None), str):
        return {"answer": value.text}
    # A Decimal or a Fraction.
    if hasattr(value, "as_integer_ratio") or hasattr(value, "numerator"):
        with contextlib.suppress(ArithmeticError, TypeError, ValueError):
            return plain(float(value))
    looks = f"of length {len(value)}" if is_long else repr(value)[:LONGEST_REPR]
    return {"odd": [type(value).__name__, looks]}


def _key(key: Any) -> Any:
    if isinstance(key, str):
        return str(key)
    if hasattr(key, "__index__") and not isinstance(key, bool) and abs(key.__index__()) <= _LARGEST_INT:
        return key.__index__()
    return repr(key)[:LONGEST_REPR]
