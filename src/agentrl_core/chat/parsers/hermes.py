"""Read tool calls in the Hermes format: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Qwen models do.

Calls are looked for after the last `</think>` only: what a model merely considers is not a call. The JSON is
read from its opening brace, so tags inside of its strings do no harm.
"""

from __future__ import annotations

import json
import re
from typing import Any

from agentrl_core.chat.parsers.base import ParsedReply, tool_call

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_THINK_END = "</think>"
_BLANKS = re.compile(r"\s*")
_CODE = re.compile(r"\s*<code>\n?(?P<code>.*?)\n?</code>\s*", re.DOTALL)
_CODE_TOOLS = frozenset({"execute_code", "PythonInterpreter"})
"""Tools whose program may follow the JSON in `<code>` tags (AgentCPM's convention)."""


class _MalformedCallError(ValueError):
    """Why a call cannot be read."""


class HermesParser:
    """Parser of `<tool_call>` blocks with one JSON object each; several blocks are parallel calls."""

    openers = (_OPEN,)

    def parse(self, text: str) -> ParsedReply:
        """Take a whole reply apart; a block that cannot be read stays in the content."""
        start = text.find(_OPEN, text.rfind(_THINK_END) + 1)
        content, end = "", 0
        calls: list[dict[str, Any]] = []
        errors: list[str] = []
        while start >= 0:
            content += text[end:start]
            try:
                call, after = _read_call(text, start + len(_OPEN))
            except _MalformedCallError as error:
                errors.append(str(error))
                end = _end_of_malformed(text, start + len(_OPEN))
                content += text[start:end]
            else:
                calls.append(call)
                end = text.find(_CLOSE, after) + len(_CLOSE)
                content = content.rstrip()  # templates put a line break before a call
                if rest := text[after : end - len(_CLOSE)].strip():
                    errors.append(f"tool call {call['function']['name']!r}: text after its JSON object")
                    content += rest
            start = text.find(_OPEN, end)
        content += text[end:]
        return ParsedReply(
            content=content.rstrip() if calls else content, tool_calls=tuple(calls), errors=tuple(errors)
        )


def _end_of_malformed(text: str, begin: int) -> int:
    """Where a block that cannot be read ends: behind its closing tag, else at the next block, else nowhere."""
    close, following = text.find(_CLOSE, begin), text.find(_OPEN, begin)
    if close >= 0 and not 0 <= following < close:
        return close + len(_CLOSE)
    return following if following >= 0 else len(text)


def _read_call(text: str, begin: int) -> tuple[dict[str, Any], int]:
    """Read the call whose JSON begins at `begin`, and where the JSON (with its code block) ends."""
    try:
        fields, end = _read_object(text, begin)
    except (ValueError, RecursionError) as error:
        raise _MalformedCallError(f"tool call is not a JSON object: {error}") from error
    name, _ = fields.get("name", (None, ""))
    if not isinstance(name, str) or not name:
        raise _MalformedCallError('tool call has no "name"')
    if "arguments" not in fields:
        raise _MalformedCallError(f'tool call {name!r} has no "arguments"')
    value, arguments = fields["arguments"]
    if not isinstance(value, dict):
        raise _MalformedCallError(f'tool call {name!r}: "arguments" is not a JSON object')
    _check_text(name, value)
    if name in _CODE_TOOLS and (code := _CODE.match(text, end)):
        arguments = json.dumps({**value, "code": code["code"]}, ensure_ascii=False)
        end = code.end()
    close, following = text.find(_CLOSE, end), text.find(_OPEN, end)
    if close < 0 or 0 <= following < close:
        raise _MalformedCallError(f"tool call {name!r} is not closed by {_CLOSE}")
    return tool_call(name, arguments), end


def _check_text(name: str, arguments: dict[str, Any]) -> None:
    """Refuse escapes of half a character (lone surrogates): what they stand for can be neither sent nor stored."""
    try:
        json.dumps([name, arguments], ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise _MalformedCallError(f"tool call {name!r} is not valid text: {error}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _read_object(text: str, begin: int) -> tuple[dict[str, tuple[Any, str]], int]:
    """Read one JSON object: key -> (value, the value's own text), and where it ends.

    `json` alone would lose how the model wrote the arguments.
    """
    at = _skip(text, begin)
    if text[at : at + 1] != "{":
        raise ValueError("no opening brace")
    fields: dict[str, tuple[Any, str]] = {}
    at = _skip(text, at + 1)
    if text[at : at + 1] == "}":
        return fields, at + 1
    while True:
        key, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if not isinstance(key, str) or text[at : at + 1] != ":":
            raise ValueError("expected a key and a colon")
        start = _skip(text, at + 1)
        value, end = _DECODER.raw_decode(text, start)
        fields[key] = (value, text[start:end])
        at = _skip(text, end)
        if text[at : at + 1] == "}":
            return fields, at + 1
        if text[at : at + 1] != ",":
            raise ValueError("expected a comma or a closing brace")
        at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    """Return the index of the next character that is no blank."""
    match = _BLANKS.match(text, at)
    return match.end() if match else at
