"""What the math agents calculate and compare with; the standard library alone, for interpreters without agentrl."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping

_LONGEST = 500
"""Characters: what nests deeper than Python's own parser can go does not fit."""

_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[float], float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def evaluate(expression: str) -> float:
    """Return the value of numbers, + - * / ** and brackets; `ValueError` for anything else, in words for a model."""
    if len(expression) > _LONGEST:
        raise ValueError(f"cannot evaluate an expression of {len(expression)} characters, at most {_LONGEST}")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (ArithmeticError, SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise ValueError(f"cannot evaluate {expression!r}: {error}") from error


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]  # an int or float, as just checked
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand))
    raise ValueError("only numbers, + - * / ** and brackets are understood")


def same_number(answer: str, reference: str) -> bool:
    """Whether the last numbers in two texts are the same, but for rounding; False where one has none."""
    found, expected = _last_number(answer), _last_number(reference)
    return found is not None and expected is not None and math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9)


def _last_number(text: str) -> float | None:
    """`-1,234.5` and `1e-3` are numbers; the minus of `3-2` is none."""
    numbers = re.findall(r"(?:(?<![\w)])-)?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?", text)
    return float(numbers[-1].replace(",", "")) if numbers else None
