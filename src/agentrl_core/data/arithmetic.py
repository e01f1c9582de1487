"""Arithmetic as a tool: evaluates an expression without ever running it as code."""

from __future__ import annotations

import ast
import math
import operator
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
