"""Check chat completions' messages and tools, and normalise them to the form that chat templates render."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agentrl_core.errors import RequestError
from agentrl_core.gateway.call_types import custom_arguments, custom_input
from agentrl_core.gateway.dialects.client_tools import ClientTools
from agentrl_core.gateway.dialects.fields import missing, text_of, wrong_type
from agentrl_core.gateway.dialects.shape import accepted, either, listed, one_of, shaped, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.gateway.call_types import ToolForm
    from agentrl_core.types import Message

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_OPTIONAL_TEXTS = ("name", "reasoning_content")

CALL = either(
    shaped({"function": shaped({"name": text()}, arguments=text())}, id=text(), type=one_of("function")),
    shaped({"custom": shaped({"name": text(), "input": text()}), "type": one_of("custom")}, id=text()),
)
MESSAGES = listed(
    accepted(
        {"role": one_of(*_ROLES)},
        content=either(text(), listed(shaped({"type": one_of("text"), "text": text()}))),
        tool_calls=listed(CALL, "Calls that an assistant's message makes."),
        tool_call_id=text("Id of the call that a tool's message answers."),
        **{name: text() for name in _OPTIONAL_TEXTS},
    ),
    "The conversation so far.",
    minItems=1,
)
_NAMED = shaped({"name": text()})
TOOLS = listed(
    either(
        shaped({"function": _NAMED}, type=one_of("function")),
        shaped({"type": one_of("custom"), "custom": _NAMED}),
    ),
    "Tools that may be called.",
)


def parse_messages(value: Any) -> tuple[Message, ...]:
    """Check and normalise a list of messages.

    Content becomes text (or parts with images), `arguments` JSON text; unknown keys and nulls are dropped, so that the
    same conversation is recognised when a client sends it with other keys.
    """
    if value is None:
        raise missing("messages")
    if not isinstance(value, list) or not value:
        raise wrong_type("messages", "must be a list with at least one message")
    return tuple([_plain(item) or _message(item, f"messages[{index}]") for index, item in enumerate(value)])


def parse_tools(value: Any) -> ClientTools:
    """Check a list of functions and custom tools."""
    tools = ClientTools()
    if value is None:
        return tools
    if not isinstance(value, list):
        raise wrong_type("tools", "must be a list of tools")
    for index, tool in enumerate(value):
        if isinstance(tool, dict) and tool.get("type") == "custom":
            tools.add_custom(tool.get("custom"), f"tools[{index}].custom")
            continue
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise wrong_type(f"tools[{index}]", 'must look like {"type": "function", "function": {"name": …}}')
        tools.functions.append(tool)
    tools.check_names()
    return tools


def call_of(call: Mapping[str, Any], forms: Mapping[str, ToolForm]) -> Mapping[str, Any]:
    """Return a call as a reply has it: that of a custom tool has the tool's input."""
    form = forms.get(call["function"]["name"])
    if form is None:
        return call
    return {"id": call["id"], "type": "custom", "custom": {"name": form.name, "input": custom_input(call)}}


def _plain(raw: Any) -> Message | None:
    """Return a message that has only role and text; None if it needs the full checks.

    Most messages are of this kind, and a long conversation is checked again with each call.
    """
    if type(raw) is not dict or len(raw) != 2:  # noqa: PLR2004 - role and content
        return None
    role, content = raw.get("role"), raw.get("content")
    if type(role) is not str or type(content) is not str or role not in _ROLES:
        return None
    return {"role": _ROLES[role], "content": content}


def _message(raw: Any, where: str) -> Message:
    if not isinstance(raw, dict):
        raise wrong_type(where, "must be an object")
    role = raw.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise wrong_type(f"{where}.role", f"must be one of {', '.join(_ROLES)}")
    message: Message = {"role": _ROLES[role], "content": _content(raw.get("content"), f"{where}.content")}
    for key in _OPTIONAL_TEXTS:
        if text := text_of(raw, key, where):
            message[key] = text
    # To ignore it, as other unknown keys, would hide the call from the policy.
    if role == "assistant" and raw.get("function_call") is not None:
        raise wrong_type(f"{where}.function_call", "is not supported: use tool_calls")
    if role == "assistant" and (calls := raw.get("tool_calls")):
        if not isinstance(calls, list):
            raise wrong_type(f"{where}.tool_calls", "must be a list")
        message["tool_calls"] = [_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)]
    if role == "tool" and (call_id := text_of(raw, "tool_call_id", where)):
        message["tool_call_id"] = call_id
    return message


def _content(value: Any, where: str) -> str | list[dict[str, Any]]:
    """Return content as text, or as a list of parts if it has images."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(where, "must be text or a list of parts")
    parts = [_part(part, f"{where}[{index}]") for index, part in enumerate(value)]
    # Text in parts and the same text as a string must give the same prompt, so parts are joined.
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "".join(texts)
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]


def image_part(url: Any, where: str) -> dict[str, Any]:
    """Build the part of an image, which must be a data URL, as the gateway fetches no images."""
    if not isinstance(url, str) or not url.startswith("data:image/"):
        raise RequestError(
            400,
            "unsupported_content",
            f"{where} must be a data URL (data:image/png;base64,…): the gateway fetches no images",
            param=where,
        )
    return {"type": "image_url", "image_url": {"url": url}}


def _part(part: Any, where: str) -> str | dict[str, Any]:
    if isinstance(part, dict):
        if part.get("type") == "image_url" and isinstance(part.get("image_url"), dict):
            return image_part(part["image_url"].get("url"), f"{where}.image_url.url")
        for kind in ("text", "refusal"):
            if part.get("type") == kind and isinstance(part.get(kind), str):
                return str(part[kind])
        if isinstance(part.get("type"), str) and part["type"] not in {"text", "image_url"}:
            raise RequestError(
                400,
                "unsupported_content",
                f"{where}: parts of type {part['type']!r} are not supported; use text",
                param=where,
            )
    raise wrong_type(
        where, 'must look like {"type": "text", "text": …} or {"type": "image_url", "image_url": {"url": …}}'
    )


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(call, dict) and call.get("type") == "custom" and isinstance(custom := call.get("custom"), dict):
        function = {**custom, "arguments": custom_arguments(text_of(custom, "input", f"{where}.custom"))}
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise wrong_type(where, 'must look like {"id": …, "type": "function", "function": {"name": …, "arguments": …}}')
    arguments = function.get("arguments")
    # Some frameworks send the object itself.
    if isinstance(arguments, dict):
        arguments = orjson.dumps(arguments).decode()
    if not isinstance(arguments, str | None):
        raise wrong_type(f"{where}.function.arguments", "must be JSON text")
    return {
        "id": text_of(call, "id", where),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments or "{}"},
    }
