"""Parse the Responses API's own request fields: tools, tool choice, text format, include, reasoning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agentrl_core.errors import RequestError
from agentrl_core.gateway.call_types import ToolChoice
from agentrl_core.gateway.dialects.fields import wrong_type
from agentrl_core.gateway.dialects.openai_fields import parse_template_options, parse_tool_choice
from agentrl_core.gateway.dialects.shape import listed, one_of, refused, shaped, text
from agentrl_core.types import Grammar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.gateway.dialects.fields import Fields

_LOGPROBS = "message.output_text.logprobs"
_FUNCTION_KEYS = ("description", "parameters", "strict")
_NO_THOUGHTS = ("none", "minimal")
"""Reasoning efforts that turn thinking off."""

TOOLS = listed(shaped({"type": one_of("function"), "name": text()}), "Functions that may be called.")
_UNSUPPORTED = {
    "conversation": "conversations are not supported: use previous_response_id, or send the items again",
    "prompt": "stored prompts are not supported: send their text as instructions or input",
}
REFUSED = {name: refused(message) for name, message in _UNSUPPORTED.items()}


def refuse_unsupported(fields: Fields) -> None:
    """Refuse fields for services that the gateway lacks: background work, stored conversations and prompts."""
    if fields.flag("background"):
        raise _unsupported("background", "background responses are not supported: leave background out and wait")
    for name, message in _UNSUPPORTED.items():
        if fields.take(name) is not None:
            raise _unsupported(name, message)


def parse_tools(value: Any) -> tuple[Mapping[str, Any], ...]:
    """Check tools and return them in the shape of chat completions, which templates render."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong_type("tools", "must be a list of tools")
    return tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(value))


def tool_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a tool from the shape of chat completions back to the Responses API's."""
    function = tool.get("function", {})
    described = {key: function.get(key) for key in _FUNCTION_KEYS}
    return {"type": "function", "name": function.get("name"), **described, "strict": bool(described["strict"])}


def parse_choice(value: Any, tools: Sequence[Mapping[str, Any]]) -> ToolChoice:
    """Check `tool_choice`: a word, a function that must be called, or the functions that may or must be called."""
    if value is None or isinstance(value, str):
        return parse_tool_choice(value, tools)
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "function" and isinstance(value.get("name"), str):
        return parse_tool_choice({"type": "function", "function": {"name": value["name"]}}, tools)
    if kind == "allowed_tools" and value.get("mode") in ("auto", "required") and isinstance(value.get("tools"), list):
        # Unlike in chat completions, mode and list are not nested here.
        known = {tool["function"]["name"] for tool in tools}
        wanted = [tool.get("name") if isinstance(tool, dict) else None for tool in value["tools"]]
        names = [name for name in wanted if isinstance(name, str) and name in known]
        if names and len(names) == len(wanted):
            return ToolChoice(mode=value["mode"], names=tuple(names))
        raise RequestError(
            400, "invalid_value", "tool_choice.tools must name functions that are in tools", param="tool_choice"
        )
    raise RequestError(
        400,
        "invalid_value",
        'tool_choice must be "auto", "none", "required", {"type": "function", "name": …} or '
        '{"type": "allowed_tools", "mode": "auto", "tools": […]}; hosted tools are not supported',
        param="tool_choice",
    )


def parse_text_format(text: Any) -> Grammar | None:
    """Check `text` (any text, any JSON object, or JSON of a schema) and return its grammar; None for any text."""
    form = text.get("format") if isinstance(text, dict) else text
    if form is None:
        return None
    match form:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return Grammar(kind="json_object")
        case {"type": "json_schema", "schema": dict(schema)}:
            return Grammar(kind="json_schema", value=orjson.dumps(schema).decode())
    raise RequestError(
        400,
        "invalid_value",
        'text.format must be {"type": "text"}, {"type": "json_object"} or '
        '{"type": "json_schema", "name": …, "schema": {…}}',
        param="text.format",
    )


def parse_include(value: Any) -> bool:
    """Check `include` and return whether it asks for log-probabilities."""
    if not isinstance(value, list | None):
        raise wrong_type("include", "must be a list of strings")
    return _LOGPROBS in (value or ())


def parse_thinking(fields: Fields) -> Mapping[str, Any]:
    """Check `reasoning` and `chat_template_kwargs`, and return the chat template's variables that they set.

    Templates without reasoning ignore these variables.
    """
    reasoning = fields.take("reasoning")
    if not isinstance(reasoning, dict | None):
        raise wrong_type("reasoning", "must be an object")
    options = parse_template_options(fields)
    return {"enable_thinking": False, **options} if (reasoning or {}).get("effort") in _NO_THOUGHTS else options


def _tool(tool: Any, where: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function" and isinstance(kind, str):
        raise _unsupported(where, f"{where}: tools of type {kind!r} are not supported; use functions")
    if kind is None or not isinstance(tool.get("name"), str):
        raise wrong_type(where, 'must look like {"type": "function", "name": …}')
    # The SDK must send `strict`; false means the same as leaving it out, and must not make it another tool.
    described = {key: value for key in _FUNCTION_KEYS if (value := tool.get(key)) is not None and value is not False}
    return {"type": "function", "function": {"name": tool["name"], **described}}


def _unsupported(param: str, message: str) -> RequestError:
    return RequestError(400, "unsupported_parameter", message, param=param)
