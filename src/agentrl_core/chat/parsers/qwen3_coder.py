"""Parse tool calls of Qwen3-Coder: `<function=name>` with one `<parameter=key>` element per argument.

Models often omit the `<tool_call>` tag around it, so `<function=` alone begins a call too. Values are bare text. The
tool's JSON schema decides which of them are numbers, lists or objects.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Self

from agentrl_core.api.parsing.call_rules import json_rule, literal, one_or_more, text_up_to
from agentrl_core.api.parsing.json_text import check_text
from agentrl_core.api.parsing.schemas import (
    name_of,
    parameters_by_name,
    parameters_of,
    properties,
    to_json,
    typed_value,
    types_of,
    words_of,
)
from agentrl_core.api.parsing.source import Marks
from agentrl_core.api.parsing.tagged import block, inside
from agentrl_core.api.tool_parsers import MalformedCallError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentrl_core.api.parsing.source import Source
    from agentrl_core.api.tool_parsers import Sink, Steps, Tools

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_BLOCK_TAGS = Marks((_OPEN, _CLOSE))
_BARE_TAGS = Marks((_FUNCTION_END, _FUNCTION, _OPEN))
_NAME_END = Marks((">", "<", "\n"))
_VALUE_STOPS = Marks((_PARAMETER_END, _PARAMETER))


class Qwen3CoderParser:
    """Parser of `<function=…>` elements, with or without `<tool_call>`; several are parallel calls."""

    openers = (_OPEN, _FUNCTION)
    starters = ()
    frames_text = False

    @classmethod
    def recognise(cls, template: str) -> Self | None:
        """Return the parser of a model whose chat template has this format's tags; None for any other template."""
        return cls() if _FUNCTION in template and _PARAMETER in template else None

    def read(self, source: Source, sink: Sink, tools: Tools) -> Steps[None]:
        """Read one block; a block that cannot be read stays in the content."""
        wrapped = source.text.startswith(_OPEN, source.at)
        begin = source.at + len(_OPEN if wrapped else _FUNCTION)
        read = functools.partial(_read_block if wrapped else _read_bare, source, source.at, tools)
        yield from block(source, sink, _BLOCK_TAGS if wrapped else _BARE_TAGS, read, begin)

    def grammar(self, tools: Tools, *, parallel: bool, mark: Callable[[str], str]) -> str:
        """Return the rules of a block, with one rule per argument."""
        rules = [f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}"]
        for index, tool in enumerate(tools):
            rules += _tool_rules(index, tool, mark)
        return one_or_more(parallel=parallel, between=literal("\n")) + "\n".join(rules) + "\n"


def _read_block(source: Source, begin: int, tools: Tools) -> Steps[tuple[list[tuple[str, str]], int]]:
    calls = []
    at = yield from source.visible(begin + len(_OPEN))
    while (yield from source.starts(_FUNCTION, at)):
        name, arguments, at = yield from _read_function(source, at, tools)
        calls.append((name, arguments))
        at = yield from source.visible(at)
    if not calls:
        raise MalformedCallError(f"tool call has no {_FUNCTION}…>")
    if not (yield from source.starts(_CLOSE, at)):
        raise MalformedCallError(f"tool call {calls[-1][0]!r} is not closed by {_CLOSE}")
    return calls, at + len(_CLOSE)


def _read_bare(source: Source, begin: int, tools: Tools) -> Steps[tuple[list[tuple[str, str]], int]]:
    name, arguments, end = yield from _read_function(source, begin, tools)
    behind = yield from source.visible(end)
    # Some calls have a closing tag without an opening one; it is not content.
    stray = yield from source.starts(_CLOSE, behind)
    return [(name, arguments)], behind + len(_CLOSE) if stray else end


def _read_function(source: Source, begin: int, tools: Tools) -> Steps[tuple[str, str, int]]:
    """Read `<function=name>…</function>`; return the name, the arguments as JSON text, and the index after it."""
    name, at = yield from _read_name(source, begin + len(_FUNCTION))
    parameters = parameters_by_name(tools, name)
    schemas = properties(parameters)
    values: dict[str, Any] = {}
    at = yield from source.visible(at)
    while (yield from source.starts(_PARAMETER, at)):
        key, at = yield from _read_name(source, at + len(_PARAMETER))
        try:
            text, at = yield from inside(source, at, _VALUE_STOPS, _PARAMETER_END, (_PARAMETER, _FUNCTION_END))
        except MalformedCallError as error:
            raise MalformedCallError(f"tool call {name!r}, parameter {key!r}: {error}") from error
        # The format puts values on lines of their own; these two line breaks belong to the format.
        text = text.removeprefix("\n").removesuffix("\n")
        values[key] = typed_value(text, schemas.get(key), parameters)
        at = yield from source.visible(at)
    if not (yield from source.starts(_FUNCTION_END, at)):
        raise MalformedCallError(f"tool call {name!r} is not closed by {_FUNCTION_END}")
    check_text(name, values)
    return name, to_json(values), at + len(_FUNCTION_END)


def _read_name(source: Source, begin: int) -> Steps[tuple[str, int]]:
    mark, end = yield from source.find(_NAME_END, begin)
    name = source.text[begin:end].strip()
    if mark != ">" or not name:
        raise MalformedCallError("tool call has a tag without a name")
    return name, end + 1


def _tool_rules(index: int, tool: Mapping[str, Any], mark: Callable[[str], str]) -> list[str]:
    parameters = parameters_of(tool)
    required = parameters.get("required") or ()
    rules, names = [], []
    for number, (key, schema) in enumerate(properties(parameters).items()):
        rule = f"p_{index}_{number}"
        names.append(rule if key in required else f"{rule}?")
        rules.append(f"{rule}: {literal(f'{_PARAMETER}{key}>{chr(10)}')} v_{index}_{number}")
        end = literal(f"\n{_PARAMETER_END}\n")
        if (words := words_of(schema, parameters)) is not None:
            values = " | ".join(literal(word) for word in words)
            rules.append(f"v_{index}_{number}: ({values}) {end}")
        elif types_of(schema, parameters) <= {"string"}:
            rules.append(text_up_to(f"v_{index}_{number}", end).rstrip())
        else:
            # The value's rule has a schema of its own, so the definitions that it refers to must be copied into it.
            root = {word: parameters[word] for word in ("$defs", "definitions") if word in parameters}
            rules += [f"v_{index}_{number}: j_{index}_{number} {end}"]
            rules += [f"j_{index}_{number}: {json_rule({**schema, **root})}"]
    opening = literal(f"\n{_FUNCTION}{name_of(tool)}>\n")
    closing = literal(f"{_FUNCTION_END}\n")
    body = " ".join([mark(_OPEN), opening, *names, closing, mark(_CLOSE)])
    return [f"call_{index}: {body}", *rules]
