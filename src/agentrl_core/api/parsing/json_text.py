"""Strict JSON reading for tool calls that keeps the text as the model wrote it.

The text matters because calls are written back into prompts: parsing and printing them again would change the tokens.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from agentrl_core.api.tool_parsers import MalformedCallError

if TYPE_CHECKING:
    from collections.abc import Mapping

_BLANKS = re.compile(r"\s*")


def read_object(text: str) -> dict[str, tuple[Any, str]]:
    """Read one JSON object: key → (value, the value's text). Raises `MalformedCallError` for any other text."""
    try:
        return _read_object(text)
    except (ValueError, RecursionError) as error:
        raise MalformedCallError(f"tool call is not a JSON object: {error}") from error


def read_call(fields: Mapping[str, tuple[Any, str]], key: str = "arguments") -> tuple[str, dict[str, Any], str]:
    """Return a call's name, its arguments and their text, from an object with the fields `name` and `key`."""
    name, _ = fields.get("name", (None, ""))
    if not isinstance(name, str) or not name:
        raise MalformedCallError('tool call has no "name"')
    if key not in fields:
        raise MalformedCallError(f'tool call {name!r} has no "{key}"')
    value, text = fields[key]
    if not isinstance(value, dict):
        raise MalformedCallError(f'tool call {name!r}: "{key}" is not a JSON object')
    check_text(name, value)
    return name, value, text


def read_arguments(name: str, text: str) -> str:
    """Check the JSON text of a call's arguments, and return it without the whitespace around it."""
    text = text.strip()
    try:
        value = strict_value(text)
    except ValueError as error:
        raise MalformedCallError(f"tool call {name!r}: the arguments are not JSON: {error}") from error
    if not isinstance(value, dict):
        raise MalformedCallError(f"tool call {name!r}: the arguments are not a JSON object")
    check_text(name, value)
    return text


def strict_value(text: str) -> Any:
    """Return the value of a text that is JSON as a whole; `ValueError` if it is not."""
    try:
        value, end = _DECODER.raw_decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if end != len(text):
        raise ValueError("text after the JSON")
    return value


def check_text(name: str, arguments: Any) -> None:
    """Refuse arguments with escaped lone surrogates (half characters), which can be neither sent nor stored."""
    try:
        json.dumps([name, arguments], ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise MalformedCallError(f"tool call {name!r} is not valid text: {error}") from error


# Python's json accepts NaN and Infinity, which are not JSON.
def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _read_object(text: str) -> dict[str, tuple[Any, str]]:
    """Read one object field by field, because `json` alone would lose how the model wrote the values."""
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("no opening brace")
    fields: dict[str, tuple[Any, str]] = {}
    at = _skip(text, at + 1)
    if text[at : at + 1] == "}":
        return fields
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
            return fields
        if text[at : at + 1] != ",":
            raise ValueError("expected a comma or a closing brace")
        at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    """Return the index of the next character that is not whitespace."""
    match = _BLANKS.match(text, at)
    return match.end() if match else at
