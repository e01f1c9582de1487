"""Parse tool calls of DeepSeek and Kimi: a section of calls, with special tokens around the section and each call."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Self, TypeAlias

import attrs

from agentrl_core.api.parsing.call_rules import by_tool, literal
from agentrl_core.api.parsing.json_text import read_arguments
from agentrl_core.api.parsing.source import Marks
from agentrl_core.api.tool_parsers import MalformedCallError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrl_core.api.parsing.source import Source
    from agentrl_core.api.tool_parsers import Sink, Steps, Tools

    _Inside: TypeAlias = Callable[[Source, int, str], Steps[tuple[str, str, int]]]

_FENCE = "```"
_LINE_END = Marks(("\n",))
_KIMI_NAME = re.compile(r"(?:functions\.)?(?P<name>.+?)(?::\d+)?")


@attrs.frozen(kw_only=True, slots=False)
class _Section:
    """Special tokens of one format, and the reading that both formats share."""

    begin: str
    end: str
    call: str
    separator: str
    call_end: str

    @functools.cached_property
    def ends(self) -> Marks:
        """Marks at which an unreadable call ends."""
        return Marks((self.call_end, self.call, self.begin, self.end))

    @functools.cached_property
    def head_ends(self) -> Marks:
        """Marks at which the text before the arguments ends."""
        return Marks((self.separator, self.call_end, self.call, self.begin, self.end))

    def read(self, source: Source, sink: Sink, inside: _Inside) -> Steps[None]:
        """Read a section of calls.

        `inside` reads one call's arguments. It gets the index after the separator and the text before the separator.
        """
        if source.text.startswith(self.begin, source.at):
            start = source.at
            source.at = yield from source.visible(start + len(self.begin))
            if not (yield from source.starts(self.call, source.at)):
                sink.malformed(source.text[start : source.at], f"no {self.call} after {self.begin}")
                return
        while True:
            # A call that cannot be read does not end the section: the next one may be sound.
            yield from self._read_call(source, sink, inside)
            behind = yield from source.visible(source.at)
            if (yield from source.starts(self.end, behind)):
                source.at = behind + len(self.end)
                return
            if not (yield from source.starts(self.call, behind)):
                return
            source.at = behind

    def _read_call(self, source: Source, sink: Sink, inside: _Inside) -> Steps[None]:
        try:
            name, arguments, end = yield from self._read_inside(source, inside)
        except MalformedCallError as error:
            begin = source.at + len(self.call)
            mark, end = yield from source.find(self.ends, begin)
            end += len(mark) if mark == self.call_end else 0
            sink.malformed(source.text[source.at : end], str(error))
        else:
            sink.call(name, arguments)
        source.at = end

    def _read_inside(self, source: Source, inside: _Inside) -> Steps[tuple[str, str, int]]:
        """Return a call's name, its arguments and the index after its end mark."""
        begin = source.at + len(self.call)
        mark, at = yield from source.find(self.head_ends, begin)
        if mark != self.separator:
            raise MalformedCallError(f"tool call has no {self.separator}")
        name, arguments, end = yield from inside(source, at + len(mark), source.text[begin:at])
        end = yield from source.visible(end)
        if not (yield from source.starts(self.call_end, end)):
            raise MalformedCallError(f"tool call {name!r} is not closed by {self.call_end}")
        return name, arguments, end + len(self.call_end)


_BAR = "\uff5c"
"""Full-width bar; DeepSeek's special tokens contain two of them in place of ASCII bars."""
_DEEPSEEK = _Section(
    begin=f"<{_BAR}tool▁calls▁begin{_BAR}>",
    end=f"<{_BAR}tool▁calls▁end{_BAR}>",
    call=f"<{_BAR}tool▁call▁begin{_BAR}>",
    separator=f"<{_BAR}tool▁sep{_BAR}>",
    call_end=f"<{_BAR}tool▁call▁end{_BAR}>",
)
_KIMI = _Section(
    begin="<|tool_calls_section_begin|>",
    end="<|tool_calls_section_end|>",
    call="<|tool_call_begin|>",
    separator="<|tool_call_argument_begin|>",
    call_end="<|tool_call_end|>",
)


class DeepSeekParser:
    """Parser of DeepSeek's calls in both forms: V3 and R1 put the JSON into a code fence, V3.1 does not.

    `fenced`: which form the model writes; it only decides which form a grammar demands.
    """

    openers = (_DEEPSEEK.begin, _DEEPSEEK.call)
    starters = ()
    frames_text = False

    def __init__(self, *, fenced: bool = True) -> None:
        self._fenced = fenced

    @classmethod
    def recognise(cls, template: str) -> Self | None:
        """Return the parser of a model whose chat template has DeepSeek's sections; None for any other template."""
        return cls(fenced=_FENCE in template) if _DEEPSEEK.begin in template else None

    def read(self, source: Source, sink: Sink, tools: Tools) -> Steps[None]:  # noqa: ARG002 - JSON has its own types
        """Read a section of calls; calls that cannot be read stay in the content."""
        yield from _DEEPSEEK.read(source, sink, _deepseek_inside)

    def grammar(self, tools: Tools, *, parallel: bool, mark: Callable[[str], str]) -> str:
        """Return the rules of a section."""
        call, separator, end = (mark(text) for text in (_DEEPSEEK.call, _DEEPSEEK.separator, _DEEPSEEK.call_end))

        def fenced(name: str, arguments: str) -> str:
            before, after = literal(f"{name}\n{_FENCE}json\n"), literal(f"\n{_FENCE}")
            return f"{call} {literal('function')} {separator} {before} {arguments} {after} {end}"

        def bare(name: str, arguments: str) -> str:
            return f"{call} {literal(name)} {separator} {arguments} {end}"

        between = literal("\n") if self._fenced else ""
        return _section_rules(_DEEPSEEK, mark, parallel=parallel, between=between) + by_tool(
            tools, fenced if self._fenced else bare
        )


class KimiK2Parser:
    """Parser of Kimi K2's calls: an id like `functions.name:0`, then the arguments."""

    openers = (_KIMI.begin, _KIMI.call)
    starters = ()
    frames_text = False

    @classmethod
    def recognise(cls, template: str) -> Self | None:
        """Return the parser of a model whose chat template has Kimi's sections; None for any other template."""
        return cls() if _KIMI.begin in template else None

    def read(self, source: Source, sink: Sink, tools: Tools) -> Steps[None]:  # noqa: ARG002 - JSON has its own types
        """Read a section of calls; calls that cannot be read stay in the content."""
        yield from _KIMI.read(source, sink, _kimi_inside)

    def grammar(self, tools: Tools, *, parallel: bool, mark: Callable[[str], str]) -> str:
        """Return the rules of a section."""
        call, separator, end = (mark(text) for text in (_KIMI.call, _KIMI.separator, _KIMI.call_end))
        return _section_rules(_KIMI, mark, parallel=parallel, between="") + by_tool(
            tools,
            lambda name, arguments: f"{call} {literal(f'functions.{name}:')} /[0-9]/ {separator} {arguments} {end}",
        )


def _section_rules(section: _Section, mark: Callable[[str], str], *, parallel: bool, between: str) -> str:
    more = f" ({between} call)*" if parallel else ""
    return f"calls: {mark(section.begin)} call{more} {mark(section.end)}\n"


def _deepseek_inside(source: Source, begin: int, head: str) -> Steps[tuple[str, str, int]]:
    start = yield from source.visible(begin)
    if (yield from source.starts("{", start)):  # V3.1: the name stands before the separator
        name = head.strip()
        arguments, end = yield from _json_arguments(source, start, name)
        return name, arguments, end
    mark, line_end = yield from source.find(_LINE_END, start)
    name = source.text[start:line_end].strip()
    at = yield from source.visible(line_end)
    if not mark or not (yield from source.starts(f"{_FENCE}json", at)):
        raise MalformedCallError("tool call has no arguments in a ```json fence")
    start = yield from source.visible(at + len(f"{_FENCE}json"))
    arguments, end = yield from _json_arguments(source, start, name)
    end = yield from source.visible(end)
    if not (yield from source.starts(_FENCE, end)):
        raise MalformedCallError(f"tool call {name!r}: the fence around its arguments is not closed")
    return name, arguments, end + len(_FENCE)


def _kimi_inside(source: Source, begin: int, head: str) -> Steps[tuple[str, str, int]]:
    found = _KIMI_NAME.fullmatch(head.strip())
    name = found["name"] if found else ""
    start = yield from source.visible(begin)
    arguments, end = yield from _json_arguments(source, start, name)
    return name, arguments, end


def _json_arguments(source: Source, start: int, name: str) -> Steps[tuple[str, int]]:
    """Read the JSON arguments that begin at `start`; return their text and the index after them."""
    if not name or "\n" in name:
        raise MalformedCallError("tool call has no name")
    if not (yield from source.starts("{", start)):
        raise MalformedCallError(f"tool call {name!r}: the arguments are not a JSON object")
    end, closed = yield from source.json_end(start)
    if not closed:
        raise MalformedCallError(f"tool call {name!r}: the arguments are not JSON")
    return read_arguments(name, source.text[start:end]), end
