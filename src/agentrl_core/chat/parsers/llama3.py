"""Parse tool calls of Llama 3: a reply that consists of `{"name": …, "parameters": {…}}`, or of several joined by `;`.

A reply that is JSON need not be a call: without a name and parameters it is content. After `<|python_tag|>` only calls
are expected, so anything else counts as a malformed call.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Self

from agentrl_core.api.parsing.call_rules import by_tool, literal, one_or_more
from agentrl_core.api.parsing.json_text import read_call, read_object
from agentrl_core.api.parsing.source import Marks
from agentrl_core.api.tool_parsers import MalformedCallError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrl_core.api.parsing.source import Source
    from agentrl_core.api.tool_parsers import Sink, Steps, Tools

_TAG = "<|python_tag|>"
_TAGS = Marks((_TAG,))
_NAME = re.compile(r'"name"\s*:')
_PARAMETERS = re.compile(r'"(parameters|arguments)"\s*:')


class Llama3Parser:
    """Parser of bare JSON calls at the beginning of a reply, and of JSON calls after `<|python_tag|>`."""

    openers = (_TAG,)
    starters = ("{",)
    frames_text = False

    @classmethod
    def recognise(cls, template: str) -> Self | None:
        """Return the parser of a model whose chat template shows the tag, or headers and `"parameters"`; else None."""
        bare = "<|start_header_id|>" in template and '"parameters"' in template
        return cls() if _TAG in template or bare else None

    def read(self, source: Source, sink: Sink, tools: Tools) -> Steps[None]:  # noqa: ARG002 - JSON has its own types
        """Read calls as long as another one follows."""
        tagged = source.text.startswith(_TAG, source.at)
        at = yield from source.visible(source.at + len(_TAG) if tagged else source.at)
        if tagged and not (yield from source.starts("{", at)):
            yield from _keep(source, sink, "tool call is not a JSON object: no opening brace")
            return
        while True:
            end, closed = yield from source.json_end(at)
            text = source.text[at:end]
            try:
                name, arguments = _read(text, closed=closed)
            except MalformedCallError as error:
                # Without a tag, only JSON that has both fields of a call counts as a malformed call. Other JSON is an
                # answer.
                if tagged or (_NAME.search(text) and _PARAMETERS.search(text)):
                    sink.malformed(source.text[source.at : end], str(error))
                else:
                    sink.text(source.text[source.at : end])
                source.at = end
                return
            sink.call(name, arguments)
            source.at = end
            following = yield from source.visible(end)
            if (yield from source.starts(";", following)):
                following = yield from source.visible(following + 1)
            if not (yield from source.starts("{", following)):
                return
            # Move past the separator only once another call follows; otherwise `;` is content.
            source.at = at = following

    def grammar(self, tools: Tools, *, parallel: bool, mark: Callable[[str], str]) -> str:  # noqa: ARG002 - no marks
        """Return the rules of bare JSON calls."""

        def call(name: str, arguments: str) -> str:
            before = literal(f'{{"name": {json.dumps(name)}, "parameters": ')
            return f"{before} {arguments} {literal('}')}"

        return one_or_more(parallel=parallel, between=literal("; ")) + by_tool(tools, call)


def _read(text: str, *, closed: bool) -> tuple[str, str]:
    if not closed:
        raise MalformedCallError("tool call is not a JSON object: no closing brace")
    fields = read_object(text)
    name, _, arguments = read_call(fields, "arguments" if "arguments" in fields else "parameters")
    return name, arguments


def _keep(source: Source, sink: Sink, error: str) -> Steps[None]:
    """Keep text after a tag that is not a call, up to the next tag, as a malformed call."""
    _, end = yield from source.find(_TAGS, source.at + len(_TAG))
    sink.malformed(source.text[source.at : end], error)
    source.at = end
