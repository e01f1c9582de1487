"""Parse tool calls of Mistral's models, which follow `[TOOL_CALLS]`.

The first models write a JSON array of calls; newer ones write `name[ARGS]{…}` for each call, some without `[ARGS]`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Self

from agentrl_core.api.parsing.call_rules import by_tool, literal, one_or_more
from agentrl_core.api.parsing.json_text import read_arguments, read_call, read_object
from agentrl_core.api.parsing.source import Marks
from agentrl_core.api.tool_parsers import MalformedCallError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrl_core.api.parsing.source import Source
    from agentrl_core.api.tool_parsers import Sink, Steps, Tools

_OPEN, _ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_OPENS = Marks((_OPEN,))
_NAME_END = Marks((_OPEN, _ID, _ARGS, "{", "\n"))
_ID_END = Marks((_OPEN, _ARGS, "{", "\n"))
_NAME = re.compile(r"[\w.:/\-]+")


class MistralParser:
    """Parser of the calls after `[TOOL_CALLS]`, in either form.

    `arrays`: whether the model writes JSON arrays; it only decides which form a grammar demands.
    """

    openers = (_OPEN,)
    starters = ()
    frames_text = False

    def __init__(self, *, arrays: bool = True) -> None:
        self._arrays = arrays

    @classmethod
    def recognise(cls, template: str) -> Self | None:
        """Return the parser of a model whose chat template has `[TOOL_CALLS]`; None for any other template."""
        return cls(arrays=_ARGS not in template) if _OPEN in template else None

    def read(self, source: Source, sink: Sink, tools: Tools) -> Steps[None]:  # noqa: ARG002 - JSON has its own types
        """Read the calls after one mark; text that cannot be read stays in the content, up to the next mark."""
        begin = source.at
        try:
            at = yield from source.visible(begin + len(_OPEN))
            if (yield from source.starts("[", at)):
                yield from _read_array(source, sink, at)
            elif (yield from source.starts("{", at)):
                source.at = yield from _read_object(source, sink, at)
            else:
                yield from _read_named(source, sink, at)
        except MalformedCallError as error:
            _, end = yield from source.find(_OPENS, max(source.at, begin + len(_OPEN)))
            sink.malformed(source.text[source.at : end], str(error))
            source.at = end

    def grammar(self, tools: Tools, *, parallel: bool, mark: Callable[[str], str]) -> str:
        """Return the rules of the form that this model writes."""
        if not self._arrays:
            return one_or_more(parallel=parallel, between="") + by_tool(
                tools, lambda name, arguments: f"{mark(_OPEN)} {literal(name)} {mark(_ARGS)} {arguments}"
            )

        def call(name: str, arguments: str) -> str:
            before = literal(f'{{"name": {json.dumps(name)}, "arguments": ')
            return f"{before} {arguments} {literal('}')}"

        more = f" ({literal(', ')} call)*" if parallel else ""
        return f"calls: {mark(_OPEN)} {literal('[')} call{more} {literal(']')}\n" + by_tool(tools, call)


def _read_array(source: Source, sink: Sink, begin: int) -> Steps[None]:
    """Read an array of calls; each call is passed on as soon as it is complete."""
    at = yield from source.visible(begin + 1)
    while True:
        at = yield from _read_object(source, sink, at)
        source.at = at
        at = yield from source.visible(at)
        if (yield from source.starts("]", at)):
            source.at = at + 1
            return
        if not (yield from source.starts(",", at)):
            raise MalformedCallError("the array of tool calls is not closed")
        source.at = at + 1
        at = yield from source.visible(at + 1)


def _read_object(source: Source, sink: Sink, begin: int) -> Steps[int]:
    if not (yield from source.starts("{", begin)):
        raise MalformedCallError("tool call is not a JSON object: no opening brace")
    end, closed = yield from source.json_end(begin)
    if not closed:
        raise MalformedCallError("tool call is not a JSON object: no closing brace")
    name, _, arguments = read_call(read_object(source.text[begin:end]))
    sink.call(name, arguments)
    return end


def _read_named(source: Source, sink: Sink, begin: int) -> Steps[None]:
    """Read `name[ARGS]{…}`. The model's own call id, between the two, is dropped: calls get ids of ours."""
    mark, at = yield from source.find(_NAME_END, begin)
    name = source.text[begin:at].strip()
    if not _NAME.fullmatch(name):
        raise MalformedCallError("tool call has no name")
    if mark == _ID:
        # `[CALL_ID]` and the id stand between the name and `[ARGS]`.
        mark, at = yield from source.find(_ID_END, at + len(_ID))
    start = yield from source.visible(at + len(_ARGS) if mark == _ARGS else at)
    if not (yield from source.starts("{", start)):
        raise MalformedCallError(f"tool call {name!r}: the arguments are not a JSON object")
    end, closed = yield from source.json_end(start)
    if not closed:
        raise MalformedCallError(f"tool call {name!r}: the arguments are not JSON")
    sink.call(name, read_arguments(name, source.text[start:end]))
    source.at = end
