"""The server `calculator`: arithmetic on one expression, parsed and evaluated without Python's `eval`.

Every operation checks the size of its operands first, so that no short expression (`9**9**9`) takes long.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Annotated, Final, TypeAlias

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from agentrl_tool_servers import command

Number: TypeAlias = int | float

_LONGEST: Final = 1000
"""Characters of an expression."""
_DEEPEST: Final = 50
"""Nested operations; Python's parser and the evaluation below recurse."""
_BITS: Final = 13_000
"""Size of an integer result; Python refuses to print more than 4,300 digits."""
_PLACES: Final = 100
"""Largest number of decimal places to round to."""
_SPELLINGS: Final = {"^": "**", "×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"}  # noqa: RUF001 - models write them


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int):
        if abs(base) > 1 and base.bit_length() * abs(exponent) > _BITS:
            raise ToolError("the power is too large")
        if base in {-1, 0, 1} and abs(exponent) > _BITS:
            exponent = (exponent % 2 or 2) * (1 if exponent > 0 else -1)
    result = base**exponent
    if isinstance(result, complex):
        raise ToolError("the power has no real value")
    return float(result) if isinstance(result, float) else int(result)


def _times(left: Number, right: Number) -> Number:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > _BITS:
        raise ToolError("the product is too large")
    return left * right


def _factorial(value: Number) -> int:
    if not isinstance(value, int) or not 0 <= value <= 1000:  # noqa: PLR2004 - 1000! has 8,530 bits
        raise ToolError("factorial: expected a whole number from 0 to 1000")
    return math.factorial(value)


def _choose(total: Number, chosen: Number) -> int:
    if not (isinstance(total, int) and isinstance(chosen, int) and 0 <= chosen <= total <= _BITS):
        raise ToolError(f"comb: expected whole numbers, 0 <= k <= n <= {_BITS}")
    return math.comb(total, chosen)


def _round(value: Number, places: Number = 0) -> Number:
    if not isinstance(places, int) or abs(places) > _PLACES:
        raise ToolError(f"round: expected a whole number of places from -{_PLACES} to {_PLACES}")
    return round(value, places) if places else round(value)


def _whole(function: Callable[..., int]) -> Callable[..., int]:
    def checked(*values: Number) -> int:
        if not all(isinstance(value, int) for value in values):
            raise ToolError(f"{function.__name__}: expected whole numbers")
        return function(*values)

    return checked


_OPERATORS: Final[dict[type[ast.operator], Callable[[Number, Number], Number]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: _times,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_FUNCTIONS: Final[dict[str, Callable[..., Number]]] = {
    "abs": abs,
    "ceil": math.ceil,
    "comb": _choose,
    "cos": math.cos,
    "degrees": math.degrees,
    "exp": math.exp,
    "factorial": _factorial,
    "floor": math.floor,
    "gcd": _whole(math.gcd),
    "hypot": math.hypot,
    "lcm": _whole(math.lcm),
    "ln": math.log,
    "log": math.log,
    "log10": math.log10,
    "log2": math.log2,
    "max": lambda *values: max(values),
    "min": lambda *values: min(values),
    "radians": math.radians,
    "round": _round,
    "sin": math.sin,
    "sqrt": math.sqrt,
    "sum": lambda *values: sum(values),
    "tan": math.tan,
    "atan": math.atan,
}
_CONSTANTS: Final = {"pi": math.pi, "e": math.e}


def calculate(expression: str) -> Number:
    """Return the value of an arithmetic expression; raise ToolError with the reason if it has none."""
    if len(expression) > _LONGEST:
        raise ToolError(f"the expression has {len(expression):,} characters; at most {_LONGEST:,} are allowed")
    for spelling, python in _SPELLINGS.items():
        expression = expression.replace(spelling, python)
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ToolError("not an arithmetic expression; write for example (3 + 4) * 2**5 / sqrt(2)") from error
    try:
        value = _value(tree.body, 0)
    except ZeroDivisionError as error:
        raise ToolError("division by zero") from error
    except OverflowError as error:
        raise ToolError("the result is too large") from error
    except (TypeError, ValueError) as error:  # wrong number of arguments, or outside of a function's domain
        raise ToolError(str(error)) from error
    if isinstance(value, float) and not math.isfinite(value):
        raise ToolError("the result is not a finite number")
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise ToolError("the result is too large")
    return value


def _value(node: ast.expr, depth: int) -> Number:
    if depth > _DEEPEST:
        raise ToolError(f"the expression is nested more than {_DEEPEST} deep")
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, depth + 1)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, depth + 1)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, depth + 1), _value(right, depth + 1))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(argument, depth + 1) for argument in arguments))
        case _:
            pass
    raise ToolError(
        f"`{ast.unparse(node)[:60]}` is not arithmetic; allowed are numbers, + - * / // % **, parentheses, "
        f"pi, e, and {', '.join(sorted(_FUNCTIONS))}"
    )


def server() -> MCPServer:
    """Return the server, with one tool, `calculate`."""
    mcp = MCPServer("calculator", log_level="WARNING")

    @mcp.tool(
        name="calculate",
        description="Calculate an arithmetic expression.",
        annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
        structured_output=False,
    )
    async def tool(
        expression: Annotated[str, Field(description="for example (3 + 4) * 2**5 / sqrt(2)")],
    ) -> str:
        return repr(calculate(expression))

    return mcp


def main(arguments: list[str] | None = None) -> None:
    """Run the server."""
    options = command.parser("agentrl_tool_servers.calculator", "A calculator.").parse_args(arguments)
    command.run(server, options.http)


if __name__ == "__main__":
    main()
