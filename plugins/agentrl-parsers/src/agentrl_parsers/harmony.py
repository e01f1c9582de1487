"""Parse the harmony format of gpt-oss: reasoning, answers and tool calls are messages, each with its own header."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Self

from agentrl_core.api.parsing.call_rules import by_tool, literal, text_up_to
from agentrl_core.api.parsing.json_text import read_arguments
from agentrl_core.api.parsing.source import Marks
from agentrl_core.api.tool_parsers import MalformedCallError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrl_core.api.parsing.source import Source
    from agentrl_core.api.tool_parsers import Sink, Steps, Tools

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_BODY_END = Marks((*_ENDS, _START, _CHANNEL))
_HEADER_END = Marks((_MESSAGE, *_ENDS))
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")


class HarmonyParser:
    """Parser of whole messages: `analysis` is reasoning, a message with a recipient is a call, all else is content."""

    openers = (_CHANNEL, _START)
    starters = ("to=",)  # the reply begins with it if the prompt ends with `<|start|>assistant`
    frames_text = True

    @classmethod
    def recognise(cls, template: str) -> Self | None:
        """Return the parser of a model whose chat template has channels; None for any other template."""
        return cls() if _CHANNEL in template else None

    def read(self, source: Source, sink: Sink, tools: Tools) -> Steps[None]:  # noqa: ARG002 - JSON has its own types
        """Read one message."""
        begin = source.at
        mark, end = yield from source.find(_HEADER_END, begin)
        header = source.text[begin:end]
        recipient = _RECIPIENT.search(header)
        if mark != _MESSAGE:
            end += len(mark)
            _keep(sink, header + mark, f"tool call has no {_MESSAGE} after its header" if recipient else "")
            source.at = end
            return
        source.at = end + len(mark)
        if recipient:
            yield from _read_call(source, sink, recipient[1], begin)
            return
        channel = _CHANNEL_NAME.search(header)
        if channel and channel[1] == "analysis":
            sink.begin_reasoning()
            end_mark = yield from source.copy(_BODY_END, sink.reasoning)
        else:
            sink.begin_text()
            end_mark = yield from source.copy(_BODY_END, sink.text)
        # `<|start|>` and `<|channel|>` end this message too, but belong to the next one.
        source.at += len(end_mark) if end_mark in _ENDS else 0

    def grammar(self, tools: Tools, *, parallel: bool, mark: Callable[[str], str]) -> str:  # noqa: ARG002 - one at a time
        """Return the rules of optional reasoning and one call; gpt-oss writes no parallel calls."""

        def call(name: str, arguments: str) -> str:
            header = f"{mark(_CHANNEL)} {literal(f'commentary to=functions.{name} ')} {mark(_CONSTRAIN)}"
            return f"{header} {literal('json')} {mark(_MESSAGE)} {arguments}"

        header = f"{mark(_CHANNEL)} {literal('analysis')} {mark(_MESSAGE)}"
        thought = f"thought: {header} inside {mark(_START)} {literal('assistant')}\n"
        return "calls: thought? call\n" + thought + text_up_to("inside", mark(_ENDS[0])) + by_tool(tools, call)


def _read_call(source: Source, sink: Sink, name: str, begin: int) -> Steps[None]:
    """Read the arguments of a call, up to an end mark or the end of the reply."""
    body = source.at
    at = yield from source.visible(body)
    if (yield from source.starts("{", at)):
        # Skip the JSON first: its strings may contain marks.
        at, _ = yield from source.json_end(at)
    mark, end = yield from source.find(_BODY_END, at)
    text = source.text[body:end]
    source.at = end + (len(mark) if mark in _ENDS else 0)
    try:
        arguments = read_arguments(name, text)
    except MalformedCallError as error:
        sink.malformed(source.text[begin : source.at], str(error))
        return
    sink.call(name, arguments)


def _keep(sink: Sink, text: str, error: str) -> None:
    if error:
        sink.malformed(text, error)
    else:
        sink.text(text)
