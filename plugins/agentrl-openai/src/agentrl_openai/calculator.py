"""Calculator tool and comparison of numbers for the example agents; imports only the standard library.

The example agents also run in interpreters where agentrl is not installed.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

OPERATIONS: Mapping[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
}

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Do one step of arithmetic with two numbers.",
        "parameters": {
            "type": "object",
            "properties": {
                "operation": {"type": "string", "enum": list(OPERATIONS)},
                "a": {"type": "number"},
                "b": {"type": "number"},
            },
            "required": ["operation", "a", "b"],
        },
    },
}
"""Declaration of the tool for chat completions."""


def calculate(operation: str, a: float, b: float) -> str:
    """Return the tool's reply to the model: the result, or an error message."""
    try:
        return f"{OPERATIONS[operation](float(a), float(b)):.12g}"
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        return f"error: {type(error).__name__}: {error}"


def same_number(answer: str, reference: str) -> bool:
    """Return whether the last numbers in two texts are equal up to rounding; False if a text has no number."""
    found, expected = _last_number(answer), _last_number(reference)
    return found is not None and expected is not None and math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9)


def _last_number(text: str) -> float | None:
    """Return the last number in a text, such as `-1,234.5` or `1e-3`; None if it has none."""
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?", text)
    return float(numbers[-1].replace(",", "")) if numbers else None
