"""Say as a grammar what a reply must look like: a thought where the model has them, then calls or an answer.

Written in the Lark dialect of llguidance: `%json` holds a JSON schema, `<[7]>` is the token with the id 7.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Literal, TypeAlias

from agentrl_core.chat.parsers.grammars import BLANKS, json_rule, literal
from agentrl_core.chat.parsers.schemas import name_of, parameters_of
from agentrl_core.errors import RequestError
from agentrl_core.types import Grammar

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrl_core.api.reasoning import ReasoningFormat
    from agentrl_core.api.tool_parsers import ToolParser, Tools

Mark: TypeAlias = "Callable[[str], str]"
"""Writes a string of the model's format as its tokenizer has it: the token where it is one, else the text."""

_LONGEST_QUOTE = 64
_LONGEST_SCHEMA_CHARS = 65_536
"""Of one JSON schema: compiling takes time that grows with the square of its properties, a second for as many."""

Thought: TypeAlias = Literal["begun", "possible", "over"]
"""Whether the prompt began a thought, left it open, or ended it."""


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
    """Return what the whole reply must look like; None where it is free.

    `answer`: what the text must be, JSON of some kind. `tools` are those that may be called; `required`: one must be.
    `RequestError` (400) where the model's format does not let a grammar say it, or a schema is too long.
    """
    if answer is None and not required:
        return None
    _check_schemas(answer, tools)
    if answer is not None and parser.frames_text:
        raise _unsupported("response_format", f"the format of {_name(parser)}, which frames all text")
    thoughtless = thought == "over" or parser.frames_text or not reasoning.separate
    if answer is not None and not tools and thoughtless:
        return answer
    rules, choices = [], []
    if tools:
        calls = parser.grammar(tools, parallel=parallel, mark=mark)
        if calls is None:
            param = "tool_choice" if required else "response_format"
            raise _unsupported(param, f"tools in the format of {_name(parser)}, which no grammar describes")
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
    """Return the rule of a thought, from its inside on where the prompt began it, with the blanks behind it."""
    opened = "" if begun else f"{mark(reasoning.open)} "
    close = re.escape(reasoning.close).replace("/", r"\/")
    blanks = f"REPLY_BLANKS: /{BLANKS}/\n"
    if mark(reasoning.close) == literal(reasoning.close):
        # Lazy: it ends with the first closing tag.
        return f"reply_thought: {opened}reply_inside REPLY_BLANKS?\nreply_inside[lazy]: /(?s:.*){close}/\n{blanks}"
    inside = rf"REPLY_INSIDE: /(?s:.*)/ & ~/(?s:.*){close}(?s:.*)/" + "\n"
    return f"reply_thought: {opened}REPLY_INSIDE {mark(reasoning.close)} REPLY_BLANKS?\n{inside}{blanks}"


def _name(parser: ToolParser) -> str:
    return type(parser).__name__


def _too_long(param: str, what: str) -> RequestError:
    return RequestError(
        400,
        "invalid_value",
        f"{param}: {what} may have at most {_LONGEST_SCHEMA_CHARS} characters of JSON for a reply to be held to it",
        param=param,
    )


def _unsupported(param: str, message: str) -> RequestError:
    return RequestError(400, "unsupported_value", f"{param} cannot be held to with {message}", param=param)
