"""Parse tool calls in the Hermes format, as Qwen models write them: JSON between `<tool_call>` and `</tool_call>`.

The JSON object is `{"name": …, "arguments": {…}}`. It is read from its opening brace to its closing one, so tags inside
of its strings do no harm.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agentrl_core.api.parsing.call_rules import by_tool, literal, one_or_more
from agentrl_core.api.parsing.json_text import read_call, read_object
from agentrl_core.api.parsing.source import Marks
from agentrl_core.api.tool_parsers import MalformedCallError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrl_core.api.parsing.source import Source
    from agentrl_core.api.tool_parsers import Sink, Steps, Tools

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_TAGS = Marks((_OPEN, _CLOSE))
_CODE = "<code>"
_CODE_END = Marks(("</code>",))
_CODE_TOOLS = frozenset({"execute_code", "PythonInterpreter"})
"""Tools whose program may follow the JSON in `<code>` tags: AgentCPM's convention."""


class HermesParser:
    """Parser of `<tool_call>` blocks with one JSON object each; several blocks are parallel calls."""

    openers = (_OPEN,)
    starters = ()
    frames_text = False

    def read(self, source: Source, sink: Sink, tools: Tools) -> Steps[None]:  # noqa: ARG002 - JSON has its own types
        """Read one block; a block that cannot be read stays in the content."""
        begin = source.at + len(_OPEN)
        try:
            name, arguments, end = yield from _read_block(source, begin)
        except MalformedCallError as error:
            # Continue after the block's closing tag, else at the next opening tag, else at the end of the text.
            mark, end = yield from source.find(_TAGS, begin)
            end += len(_CLOSE) if mark == _CLOSE else 0
            sink.malformed(source.text[source.at : end], str(error))
            source.at = end
            return
        mark, close = yield from source.find(_TAGS, end)
        if mark != _CLOSE:
            sink.malformed(source.text[source.at : close], f"tool call {name!r} is not closed by {_CLOSE}")
            source.at = close
            return
        sink.call(name, arguments)
        # The call itself is sound and counts. Only the text after it is reported.
        if rest := source.text[end:close].strip():
            sink.malformed(rest, f"tool call {name!r}: text after its JSON object")
        source.at = close + len(_CLOSE)

    def grammar(self, tools: Tools, *, parallel: bool, mark: Callable[[str], str]) -> str:
        """Return the rules of a block, or of several blocks on separate lines."""

        def block(name: str, arguments: str) -> str:
            before = literal(f'\n{{"name": {json.dumps(name)}, "arguments": ')
            after = literal("}\n")
            return f"{mark(_OPEN)} {before} {arguments} {after} {mark(_CLOSE)}"

        return one_or_more(parallel=parallel, between=literal("\n")) + by_tool(tools, block)


def _read_block(source: Source, begin: int) -> Steps[tuple[str, str, int]]:
    """Read the call whose JSON begins at `begin`; return its name, arguments, and the index after it.

    Code that follows the JSON belongs to the call.
    """
    start = yield from source.visible(begin)
    opened = yield from source.starts("{", start)
    if not opened:
        raise MalformedCallError("tool call is not a JSON object: no opening brace")
    end, closed = yield from source.json_end(start)
    if not closed:
        raise MalformedCallError("tool call is not a JSON object: no closing brace")
    name, value, arguments = read_call(read_object(source.text[start:end]))
    if name in _CODE_TOOLS:
        code_at = yield from source.visible(end)
        has_code = yield from source.starts(_CODE, code_at)
        if has_code:
            code_at += len(_CODE)
            mark, close = yield from source.find(_CODE_END, code_at)
            if mark:
                code = source.text[code_at:close].removeprefix("\n").removesuffix("\n")
                return name, json.dumps({**value, "code": code}, ensure_ascii=False), close + len(mark)
    return name, arguments, end
