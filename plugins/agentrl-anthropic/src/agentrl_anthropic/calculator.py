"""What the math agents calculate and compare with; the standard library alone, for interpreters without agentrl."""

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
    "name": "calculator",
    "description": "Do one step of arithmetic with two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {
            "operation": {"type": "string", "enum": list(OPERATIONS)},
            "a": {"type": "number"},
            "b": {"type": "number"},
        },
        "required": ["operation", "a", "b"],
    },
}
"""The tool as the Messages API declares it."""


def calculate(operation: str, a: float, b: float) -> str:
    """Return what the model is told: the result, or what is wrong with the call."""
    try:
        return f"{OPERATIONS[operation](float(a), float(b)):.12g}"
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        return f"error: {type(error).__name__}: {error}"


def same_number(answer: str, reference: str) -> bool:
    """Whether the last numbers in two texts are the same, but for rounding; False where one has none."""
    found, expected = _last_number(answer), _last_number(reference)
    return found is not None and expected is not None and math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9)


def _last_number(text: str) -> float | None:
    """`-1,234.5` and `1e-3` are numbers."""
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?", text)
    return float(numbers[-1].replace(",", "")) if numbers else None
