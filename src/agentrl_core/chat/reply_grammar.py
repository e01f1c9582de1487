"""Build the grammar of a whole reply: reasoning if the model writes any, then tool calls or a constrained answer.

Serves `tool_choice` and `response_format`. Grammars are written in the Lark dialect of llguidance: `%json` holds a JSON
schema, and `<[7]>` is the token with the id 7. The tool-call parsers contribute the rules of their calls.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Literal, TypeAlias

from agentrl_core.api.parsing.call_rules import BLANKS, json_rule, literal
from agentrl_core.api.parsing.schemas import name_of, parameters_of
from agentrl_core.errors import RequestError
from agentrl_core.types import Grammar

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrl_core.api.reasoning import ReasoningFormat
    from agentrl_core.api.tool_parsers import ToolParser, Tools

Mark: TypeAlias = "Callable[[str], str]"
"""Function that writes a string of the model's format for a grammar: a special token by its id, other text in
quotes."""

_LONGEST_QUOTE = 64
"""Most characters of a tool's name in an error message."""
_LONGEST_SCHEMA_CHARS = 65_536
"""Longest JSON schema. Compilation time grows with the square of the number of properties: a schema of this length
takes about a second."""

Thought: TypeAlias = Literal["begun", "possible", "over"]
"""State of the reasoning at the end of the prompt: already opened, not begun, or already closed."""


def reply_grammar(
    answer: Grammar | None,
    tools: Tools,
    *,
    required: bool,
    parallel: bool,
    parser: ToolParser,
    reasoning: ReasoningFormat,
    thought: Thought,
    mark: Mark,
) -> Grammar | None:
    """Return the grammar of the whole reply; None if the reply is unconstrained.

    `answer` constrains the text to JSON of some kind. `tools` may be called; with `required` at least one must be.
    Raises `RequestError` (400) if a grammar cannot express this in the model's format, or if a schema is too long.
    """
    if answer is None and not required:
        return None
    _check_schemas(answer, tools)
    if answer is not None and parser.frames_text:
        raise _unsupported("response_format", f"the format of {_name(parser)}, in which headers frame all text")
    # Where no reasoning can come first, the answer's own grammar is returned unchanged: SGLang takes JSON schemas but
    # no Lark grammars.
    thoughtless = thought == "over" or parser.frames_text or not reasoning.separate
    if answer is not None and not tools and thoughtless:
        return answer
    rules, choices = [], []
    if tools:
        calls = parser.grammar(tools, parallel=parallel, mark=mark)
        if calls is None:
            param = "tool_choice" if required else "response_format"
            raise _unsupported(param, f"tools in the format of {_name(parser)}, for which there is no grammar")
        rules.append(calls)
        choices.append("calls")
    if answer is not None and not required:
        rules.append(f"reply_answer: {_answer(answer)}\n")
        choices.append("reply_answer")
    body = f"({' | '.join(choices)})"
    if thoughtless:
        start = f"start: {body}\n"
    else:
        start = f"start: reply_thought{'' if thought == 'begun' else '?'} {body}\n"
        rules.append(_thought(reasoning, mark, begun=thought == "begun"))
    return Grammar(kind="lark", value=start + "".join(rules))


def _check_schemas(answer: Grammar | None, tools: Tools) -> None:
    if answer is not None and len(answer.value) > _LONGEST_SCHEMA_CHARS:
        raise _too_long("response_format", "the schema")
    for tool in tools:
        if len(json.dumps(parameters_of(tool))) > _LONGEST_SCHEMA_CHARS:
            raise _too_long("tools", f"the parameters of {name_of(tool)[:_LONGEST_QUOTE]!r}")


def _answer(answer: Grammar) -> str:
    schema = json.loads(answer.value) if answer.kind == "json_schema" else {"type": "object"}
    return json_rule(schema, lenient=False)


def _thought(reasoning: ReasoningFormat, mark: Mark, *, begun: bool) -> str:
    """Return the rule of a reasoning block and the whitespace after it; with `begun` it starts inside of the block."""
    opened = "" if begun else f"{mark(reasoning.open)} "
    close = re.escape(reasoning.close).replace("/", r"\/")
    blanks = f"REPLY_BLANKS: /{BLANKS}/\n"
    if mark(reasoning.close) == literal(reasoning.close):
        # The closing tag is plain text. Lazy, so that the block ends at the first closing tag.
        return f"reply_thought: {opened}reply_inside REPLY_BLANKS?\nreply_inside[lazy]: /(?s:.*){close}/\n{blanks}"
    # The closing tag is a special token. The text must still exclude the tag spelled as ordinary characters.
    inside = rf"REPLY_INSIDE: /(?s:.*)/ & ~/(?s:.*){close}(?s:.*)/" + "\n"
    return f"reply_thought: {opened}REPLY_INSIDE {mark(reasoning.close)} REPLY_BLANKS?\n{inside}{blanks}"


def _name(parser: ToolParser) -> str:
    return type(parser).__name__


def _too_long(param: str, what: str) -> RequestError:
    return RequestError(
        400,
        "invalid_value",
        f"{param}: {what} may have at most {_LONGEST_SCHEMA_CHARS} characters of JSON to be enforced by a grammar",
        param=param,
    )


def _unsupported(param: str, message: str) -> RequestError:
    return RequestError(400, "unsupported_value", f"{param} cannot be enforced with {message}", param=param)
