"""JSON of tools: their descriptions in the shapes of the LLM APIs, and the arguments that models write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import orjson

from agentrl_core.config.nodes import without_password

if TYPE_CHECKING:
    from agentrl_core.api.tools import ToolSpec

_LONGEST = 300
"""Characters of an error that a model or a record gets."""
MOST_BYTES = 4 * 2**20
"""Longest arguments of a call."""


def one_line(text: str, longest: int = _LONGEST) -> str:
    """Return a text as one line of at most `longest` characters."""
    line = " ".join(text[: 4 * longest].split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def to_json(value: Any, option: int = 0) -> bytes:
    """Return a JSON value as text; `TypeError` if it is none."""
    return orjson.dumps(value, default=_as_dict, option=option)


def _as_dict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def plain(value: Any) -> Any:
    """Return a JSON value whose objects are dicts; a server may give other mappings, which stores do not take."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return list(map(plain, value)) if isinstance(value, list) else value


def without_image(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a content part, with a text in place of an image for a model that sees none."""
    if part["type"] != "image_url":
        return part
    url: str = part["image_url"]["url"]
    kind = f" of type {url[5:].partition(';')[0]}" if url.startswith("data:") else f" at {one_line(url, 200)}"
    rest = {key: value for key, value in part.items() if key != "image_url"}
    return {**rest, "type": "text", "text": f"[image{kind}, which cannot be shown]"}


def described(error: BaseException) -> str:
    """Return type and message of an exception as one line, without passwords of addresses."""
    text = one_line(without_password(str(error)))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def parse_arguments(arguments: Mapping[str, Any] | str) -> tuple[dict[str, Any] | None, str]:
    """Return the arguments of a call as a JSON object, or None with what is wrong with them.

    An empty text is an object without members, as some models write calls without arguments.
    """
    try:
        text = arguments if isinstance(arguments, str) else to_json(arguments)
        if len(text) > MOST_BYTES:
            return None, too_long(len(text))
        parsed = orjson.loads(text) if text.strip() else {}
    except orjson.JSONDecodeError as error:
        return None, one_line(f"the arguments are no JSON: {error}")
    except TypeError as error:
        return None, one_line(f"the arguments are no JSON: {error}")
    if not isinstance(parsed, dict):
        return None, f"the arguments must be a JSON object, not {_json_type(parsed)}"
    return parsed, ""


def too_long(size: int) -> str:
    """Return what is wrong with arguments of so many bytes."""
    return f"the arguments have {size:,} bytes, more than the {MOST_BYTES:,} allowed"


def _json_type(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return orjson.dumps(value).decode()
    return "an array" if isinstance(value, list) else "a string" if isinstance(value, str) else "a number"


def prefixed(spec: ToolSpec, prefix: str) -> ToolSpec:
    """Return a tool as the model sees it; its schema is a copy."""
    parameters = orjson.loads(to_json(spec.parameters))
    return attrs.evolve(spec, name=prefix + spec.name, parameters={"type": "object", **parameters})


def openai_tools(specs: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return tools for OpenAI's chat completions."""
    return [{"type": "function", "function": _function(spec)} for spec in specs]


def openai_responses_tools(specs: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return tools for OpenAI's Responses; not strict, because that refuses schemas with optional arguments."""
    return [{"type": "function", **_function(spec), "strict": False} for spec in specs]


def anthropic_tools(specs: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return tools for Anthropic's messages."""
    return [
        {"name": spec.name, "description": spec.description, "input_schema": dict(spec.parameters)} for spec in specs
    ]


def _function(spec: ToolSpec) -> dict[str, Any]:
    return {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
