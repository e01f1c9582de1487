"""Parse tool calls of MiniCPM 3 and 4: Python calls with literal arguments, in a code fence between two special tokens.

Nothing is evaluated: the code is only parsed, and an argument that is not a literal is refused.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any, Self

from agentrl_core.api.parsing.json_text import check_text
from agentrl_core.api.parsing.schemas import parameters_by_name, properties, to_json
from agentrl_core.api.parsing.source import Marks
from agentrl_core.api.tool_parsers import MalformedCallError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrl_core.api.parsing.source import Source
    from agentrl_core.api.tool_parsers import Sink, Steps, Tools

_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_TAGS = Marks((_OPEN, _CLOSE))
_FENCE = re.compile(r"\s*```(?:python)?\n?(?P<code>.*?)\n?```\s*", re.DOTALL)
_CONSTANTS = {"true": True, "false": False, "null": None}
"""JSON's constants, which models mix into Python code."""
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_PLAIN_ESCAPES = "\n\\'\"abfnrtvxNuU01234567"
_RAW_STRING = re.compile(r"\b(?:[bB]?[rR]|[rR][bB])['\"]")


class MiniCPMParser:
    """Parser of blocks of Python calls; several calls in a block are parallel calls."""

    openers = (_OPEN,)
    starters = ()
    frames_text = False

    @classmethod
    def recognise(cls, template: str) -> Self | None:
        """Return the parser of a model whose chat template has this format's token; None for any other template."""
        return cls() if _OPEN in template else None

    def read(self, source: Source, sink: Sink, tools: Tools) -> Steps[None]:
        """Read one block; a block that cannot be read stays in the content."""
        begin = source.at + len(_OPEN)
        mark, end = yield from source.find(_TAGS, begin)
        close = end + len(_CLOSE) if mark == _CLOSE else end
        calls: list[tuple[str, str]] = []
        error = f"tool call is not closed by {_CLOSE}"
        if mark == _CLOSE:
            try:
                calls = _read_calls(source.text[begin:end], tools)
            except MalformedCallError as malformed:
                error = str(malformed)
        for name, arguments in calls:
            sink.call(name, arguments)
        if not calls:
            sink.malformed(source.text[source.at : close], error)
        source.at = close

    def grammar(self, tools: Tools, *, parallel: bool, mark: Callable[[str], str]) -> None:  # noqa: ARG002
        """Return None: a JSON schema does not say how a value is written in Python."""
        return


def _read_calls(text: str, tools: Tools) -> list[tuple[str, str]]:
    fenced = _FENCE.fullmatch(text)
    code = (fenced["code"] if fenced else text).strip()
    try:
        body = ast.parse(_with_odd_escapes(code)).body
        found = [_read_call(statement, tools) for statement in body]
    except MalformedCallError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise MalformedCallError(f"tool call is not Python: {error}") from error
    if not found:
        raise MalformedCallError("tool call is empty")
    return found


def _read_call(statement: ast.stmt, tools: Tools) -> tuple[str, str]:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name | ast.Attribute):
        raise MalformedCallError("tool call is not a function call with a plain name")
    name = ast.unparse(call.func)
    # Arguments without a name are taken in the order of the schema's properties.
    names = list(properties(parameters_by_name(tools, name)))
    if len(call.args) > len(names):
        raise MalformedCallError(f"tool call {name!r} has more positional arguments than the tool has parameters")
    arguments = {key: _value(node) for key, node in zip(names, call.args, strict=False)}
    for keyword in call.keywords:
        if keyword.arg is None:
            given = _value(keyword.value)
            if not isinstance(given, dict):
                raise MalformedCallError(f"tool call {name!r} unpacks a value that is not a dict")
            arguments |= given
        else:
            arguments[keyword.arg] = _value(keyword.value)
    check_text(name, arguments)
    return name, to_json(arguments)


def _value(node: ast.expr) -> Any:
    """Return the value of a literal, if JSON has such a value."""
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    raise MalformedCallError(f"tool call has an argument that is not a literal: {ast.unparse(node)[:80]}")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise MalformedCallError("tool call has a dict whose keys are not all strings")


def _with_odd_escapes(code: str) -> str:
    """Double backslashes that escape nothing: Python reads both alike, but warns about a single one."""
    if _RAW_STRING.search(code):
        return code
    return _ESCAPE.sub(lambda found: found[0] if found[1] in _PLAIN_ESCAPES else "\\" + found[0], code)
