"""Calculators and a comparison of numbers, for the example agents that solve word problems."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping

_LONGEST = 500
"""Characters of an expression; a longer one could nest deeper than Python's parser can go."""

_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,
}
_NUMBER = re.compile(r"(?<![\w.])(?:(?<!\))[-+])?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|\.\d+)")
_UNARY: Mapping[type[ast.unaryop], Callable[[float], float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


OPERATIONS: Mapping[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
}


def calculate(operation: str, a: float, b: float) -> str:
    """Return the tool's reply to the model: the result of one of `OPERATIONS`, or an error message."""
    try:
        return f"{OPERATIONS[operation](float(a), float(b)):.12g}"
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        return f"error: {type(error).__name__}: {error}"


def evaluate(expression: str) -> float:
    """Return the value of an expression of numbers, + - * / ** and brackets.

    Raises `ValueError` for anything else, with a message that the model gets to read.
    """
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
    """Return whether the last numbers in two texts are equal up to rounding; False if a text has no number."""
    found, expected = _last_number(answer), _last_number(reference)
    return found is not None and expected is not None and math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9)


def _last_number(text: str) -> float | None:
    """Return the last number in a text, such as `-1,234.5` or `1e-3`; the minus in `3-2` is not part of a number."""
    numbers = _NUMBER.findall(text)
    return float(numbers[-1].replace(",", "")) if numbers else None
