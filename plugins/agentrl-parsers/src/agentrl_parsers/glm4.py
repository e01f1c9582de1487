"""Parse tool calls of GLM 4.5 and later: a name, then alternating `<arg_key>` and `<arg_value>` elements.

Values are bare text. The tool's JSON schema decides which of them are numbers, lists or objects.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Self

from agentrl_core.api.parsing.json_text import check_text
from agentrl_core.api.parsing.schemas import parameters_by_name, properties, to_json, typed_value
from agentrl_core.api.parsing.source import Marks
from agentrl_core.api.parsing.tagged import block, inside
from agentrl_core.api.tool_parsers import MalformedCallError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrl_core.api.parsing.source import Source
    from agentrl_core.api.tool_parsers import Sink, Steps, Tools

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"
_TAGS = Marks((_OPEN, _CLOSE))
_NAME_END = Marks((_KEY, _CLOSE, _OPEN))
_KEY_STOPS = Marks((_KEY_END, _KEY, _VALUE, _CLOSE, _OPEN))
_VALUE_STOPS = Marks((_VALUE_END, _KEY))


class Glm4Parser:
    """Parser of `<tool_call>` blocks with keys and values; several blocks are parallel calls."""

    openers = (_OPEN,)
    starters = ()
    frames_text = False

    @classmethod
    def recognise(cls, template: str) -> Self | None:
        """Return the parser of a model whose chat template has this format's keys; None for any other template."""
        return cls() if _KEY in template else None

    def read(self, source: Source, sink: Sink, tools: Tools) -> Steps[None]:
        """Read one block; a block that cannot be read stays in the content."""
        begin = source.at + len(_OPEN)
        yield from block(source, sink, _TAGS, functools.partial(_read_block, source, begin, tools), begin)

    def grammar(self, tools: Tools, *, parallel: bool, mark: Callable[[str], str]) -> None:  # noqa: ARG002
        """Return None: a grammar could not keep values of several types apart, as the model writes all of them bare."""
        return


def _read_block(source: Source, begin: int, tools: Tools) -> Steps[tuple[list[tuple[str, str]], int]]:
    mark, at = yield from source.find(_NAME_END, begin)
    name = source.text[begin:at].strip()
    if not name or "\n" in name or mark not in (_KEY, _CLOSE):
        raise MalformedCallError("tool call has no name")
    parameters = parameters_by_name(tools, name)
    schemas = properties(parameters)
    values: dict[str, Any] = {}
    while (yield from source.starts(_KEY, at)):
        # A closing tag inside of a key or value is text unless the element that must follow comes next.
        key, at = yield from inside(source, at + len(_KEY), _KEY_STOPS, _KEY_END, (_VALUE,))
        at = yield from source.visible(at)
        text, at = yield from inside(source, at + len(_VALUE), _VALUE_STOPS, _VALUE_END, (_KEY, _CLOSE))
        values[key.strip()] = typed_value(text, schemas.get(key.strip()), parameters)
        at = yield from source.visible(at)
    if not (yield from source.starts(_CLOSE, at)):
        raise MalformedCallError(f"tool call {name!r} is not closed by {_CLOSE}")
    check_text(name, values)
    return [(name, to_json(values))], at + len(_CLOSE)
