"""Make a scorer's details storable: any objects become JSON of a bounded size, without secrets."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

LARGEST_BYTES = 65_536
"""Largest size of a record's details as JSON. A judge's prompt and replies fit, and ten thousand records stay below
a gigabyte."""

_CUTS = (20_000, 4_000, 500, 60)
"""Characters that are kept of a text; of a list, a tenth of that number of items. The first one with which
everything fits is used."""
_DEEPEST = 8
"""Levels of nesting that are kept; deeper values become text."""


def storable(details: Any, clean: Callable[[str], str] = str) -> dict[str, Any]:
    """Return `details` as JSON values of at most `LARGEST_BYTES`.

    Values that JSON lacks become text, every text passes through `clean`, and texts and lists are cut until all fits.
    """
    if not isinstance(details, Mapping):
        details = {"details": details}
    for most in _CUTS:
        kept = _kept(details, most, _DEEPEST, clean)
        if isinstance(kept, dict) and len(json.dumps(kept)) <= LARGEST_BYTES:
            return kept
    return {"left_out": f"details of more than {LARGEST_BYTES} bytes"}


def _kept(value: Any, most: int, depth: int, clean: Callable[[str], str]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, numbers.Real):
        return _number(value)
    if isinstance(value, Mapping | list | tuple) and depth:
        items = max(1, most // 10)
        if isinstance(value, Mapping):
            pairs = list(value.items())[:items]
            return {_text(key, most, clean): _kept(item, most, depth - 1, clean) for key, item in pairs}
        return [_kept(item, most, depth - 1, clean) for item in value[:items]]
    return _text(value, most, clean)


def _number(value: numbers.Real) -> int | float | str:
    # numpy's numbers are `numbers.Real` too, but `json` accepts Python's own only.
    number = int(value) if isinstance(value, numbers.Integral) else float(value)
    return number if math.isfinite(number) else str(number)


def _text(value: Any, most: int, clean: Callable[[str], str]) -> str:
    """Return a text of about `most` characters at most; a scorer's `__str__` may raise."""
    try:
        text = clean(str(value))
    except Exception as error:  # noqa: BLE001 - user code may raise anything
        return f"({type(value).__name__}, whose text cannot be shown: {type(error).__name__})"
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} […{len(text) - 2 * half} characters…] {text[-half:]}"
