"""Convert Anthropic's messages and tools to the form that chat templates render (OpenAI's shape).

Marks such as `cache_control` and citations are dropped. Clients add and move them from turn to turn, and the
conversation must still be recognised as the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from agentrl_core.errors import RequestError
from agentrl_core.gateway.dialects.client_tools import ClientTools
from agentrl_core.gateway.dialects.fields import missing, text_of, wrong_type
from agentrl_core.gateway.dialects.openai_messages import image_part
from agentrl_core.gateway.dialects.shape import anything, either, listed, one_of, shaped, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.types import Message

_ROLES = ("user", "assistant", "system")

_BLOCKS = either(text(), listed(shaped({"type": text()})))
MESSAGES = listed(shaped({"role": one_of(*_ROLES), "content": _BLOCKS}), "The conversation so far.", minItems=1)
SYSTEM = either(text(), listed(shaped({"type": one_of("text"), "text": text()})), about="System prompt.")
TOOLS = listed(shaped({"name": text(minLength=1), "input_schema": anything()}), "Custom tools that may be called.")
_Block: TypeAlias = "tuple[Mapping[str, Any], str]"
"""Content block and its path in the request, for errors."""


def parse_messages(system: Any, messages: Any) -> tuple[Message, ...]:
    """Check a system prompt and messages, and return them as messages in OpenAI's shape.

    There each tool result is a separate message. `RequestError` (400) names the field at fault.
    """
    if messages is None:
        raise missing("messages")
    if not isinstance(messages, list) or not messages:
        raise wrong_type("messages", "must be a list with at least one message")
    found: list[Message] = []
    if text := _plain(system, "system"):
        found.append({"role": "system", "content": text})
    for index, raw in enumerate(messages):
        for message in _messages(raw, f"messages[{index}]"):
            # This API treats consecutive messages of one role as one turn.
            if message["role"] == "assistant" and found and found[-1]["role"] == "assistant":
                _extend(found[-1], message)
            else:
                found.append(message)
    if found[-1]["role"] == "assistant":
        raise RequestError(
            400,
            "unsupported_value",
            "messages ends with an assistant's message: this model does not support assistant message prefill; "
            "the conversation must end with a user message",
            param="messages",
        )
    return tuple(found)


def parse_tools(value: Any) -> ClientTools:
    """Check a list of tools; this API's custom tools are functions, and all others are Anthropic's own."""
    tools = ClientTools()
    if value is None:
        return tools
    if not isinstance(value, list):
        raise wrong_type("tools", "must be a list of tools")
    for index, tool in enumerate(value):
        where = f"tools[{index}]"
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind in (None, "custom"):
            tools.functions.append(_tool(tool, where))
        elif isinstance(kind, str):
            tools.hosted[where] = kind
        else:
            raise wrong_type(f"{where}.type", "must be a string")
    return tools


def _tool(tool: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str) or not tool["name"]:
        raise wrong_type(where, 'must look like {"name": …, "description": …, "input_schema": {…}}')
    function: dict[str, Any] = {"name": tool["name"]}
    if description := text_of(tool, "description", where):
        function["description"] = description
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise wrong_type(f"{where}.input_schema", "must be a JSON schema")
    function["parameters"] = schema
    return {"type": "function", "function": function}


def _messages(raw: Any, where: str) -> list[Message]:
    """Convert one of Anthropic's messages to one or more in OpenAI's shape."""
    if not isinstance(raw, dict):
        raise wrong_type(where, "must be an object")
    role, content, inside = raw.get("role"), raw.get("content"), f"{where}.content"
    if role == "user":
        return _user(content, inside)
    if role == "assistant":
        return [_assistant(content, inside)]
    if role == "system":
        return [{"role": "system", "content": _plain(content, inside)}]
    raise wrong_type(f"{where}.role", f"must be one of {', '.join(_ROLES)}")


def _user(content: Any, where: str) -> list[Message]:
    """Convert a user's message: first the tool results, as they answer the turn before, then the user's content."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    found: list[Message] = []
    said: list[_Block] = []
    for block, at in _blocks(content, where):
        if block["type"] == "tool_result":
            results, call_id = block.get("content"), _required(block, "tool_use_id", at)
            text = results if isinstance(results, str) else _parts(_blocks(results, f"{at}.content"))
            found.append({"role": "tool", "content": text, "tool_call_id": call_id})
        else:
            said.append((block, at))
    text = _parts(said)
    # A message of tool results only has no user's text; an empty one is kept as the user's turn.
    if text or not found:
        found.append({"role": "user", "content": text})
    return found


def _assistant(content: Any, where: str) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Mapping[str, Any]] = []
    for block, at in _blocks(content, where):
        kind = block["type"]
        if kind == "text":
            texts.append(text_of(block, "text", at))
        elif kind == "thinking":
            thoughts.append(text_of(block, "thinking", at))
        elif kind == "tool_use":
            calls.append(_call(block, at))
        # Redacted thinking is encrypted for Anthropic's models, and no reply from here has it: it is dropped.
        elif kind != "redacted_thinking":
            raise _unsupported(kind, at, "text, thinking and tool_use")
    message: Message = {"role": "assistant", "content": "".join(texts)}
    if thought := "".join(thoughts):
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def _extend(message: Message, more: Message) -> None:
    for key in ("content", "reasoning_content", "tool_calls"):
        if key in more:
            message[key] = message[key] + more[key] if key in message else more[key]


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict | None):
        raise wrong_type(f"{where}.input", "must be an object")
    return {
        "id": _required(block, "id", where),
        "type": "function",
        "function": {"name": _required(block, "name", where), "arguments": orjson.dumps(arguments or {}).decode()},
    }


def _blocks(content: Any, where: str) -> list[_Block]:
    """Return the blocks of a content with their paths; a string counts as one block of text."""
    if content is None:
        return []
    if isinstance(content, str):
        return [({"type": "text", "text": content}, where)]
    if not isinstance(content, list):
        raise wrong_type(where, "must be text or a list of blocks")
    blocks = [(block, f"{where}[{index}]") for index, block in enumerate(content)]
    for block, at in blocks:
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise wrong_type(at, 'must look like {"type": "text", "text": …}')
    return blocks


def _parts(blocks: Sequence[_Block]) -> str | list[dict[str, Any]]:
    """Return blocks as text, or as a list of parts if there are images."""
    parts = [_part(block, at) for block, at in blocks]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    if block["type"] == "text":
        return {"type": "text", "text": text_of(block, "text", where)}
    if block["type"] == "image":
        return _image(block.get("source"), f"{where}.source")
    raise _unsupported(block["type"], where, "text and image")


def _image(source: Any, where: str) -> dict[str, Any]:
    kind = source.get("type") if isinstance(source, dict) else None
    if kind == "base64":
        url = f"data:{_required(source, 'media_type', where)};base64,{_required(source, 'data', where)}"
        return image_part(url, where)
    if kind == "url":
        return image_part(source.get("url"), f"{where}.url")
    if kind == "file":
        raise RequestError(
            400, "unsupported_content", f"{where}: files are not supported; send the image as base64", param=where
        )
    raise wrong_type(where, 'must look like {"type": "base64", "media_type": "image/png", "data": …}')


def _plain(content: Any, where: str) -> str:
    """Return the text of a content that may hold text blocks only."""
    texts = []
    for block, at in _blocks(content, where):
        if block["type"] != "text":
            raise _unsupported(block["type"], at, "text")
        texts.append(text_of(block, "text", at))
    return "".join(texts)


def _required(raw: Mapping[str, Any], key: str, where: str) -> str:
    value = text_of(raw, key, where)
    if not value:
        raise wrong_type(f"{where}.{key}", "must be a string, not empty")
    return value


def _unsupported(kind: str, where: str, expected: str) -> RequestError:
    message = f"{where}: blocks of type {kind!r} are not supported here; use {expected}"
    return RequestError(400, "unsupported_content", message, param=where)
