"""Translation of a task's `messages`, in OpenAI's form, into the prompt and message history of Pydantic AI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agentrl_core.errors import DataError

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelRequestPart, ModelResponsePart, UserContent

Json = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class AgentTask:
    """Arguments for `Agent.run`."""

    prompt: str | list[UserContent] | None
    """Last user message; None if the messages end with one of another role."""
    history: list[ModelMessage]
    instructions: str | None
    """System message at the beginning, to be followed in addition to the agent's own instructions."""


def read_task(messages: Sequence[Json], task_id: object) -> AgentTask:
    """Split a row's messages into instructions, history and prompt.

    Raises `DataError` for messages that Pydantic AI cannot represent.
    """
    rest = list(messages)
    where = f"task '{task_id}'"
    instructions = None
    if rest and rest[0].get("role") == "system":
        instructions = _text(rest.pop(0), where)
    prompt: str | list[UserContent] | None = None
    if rest and rest[-1].get("role") == "user":
        prompt = _content(rest.pop(), where)
    names: dict[str, str] = {}
    history = [_message(message, names, where) for message in rest]
    return AgentTask(prompt=prompt, history=history, instructions=instructions)


def _message(message: Json, names: dict[str, str], where: str) -> ModelMessage:
    """Return one message. `names` maps the ids of the tool calls so far to the tools' names."""
    role = message.get("role")
    if role == "assistant":
        return ModelResponse(parts=_reply_parts(message, names, where))
    part: ModelRequestPart
    if role == "system":
        part = SystemPromptPart(_text(message, where))
    elif role == "user":
        part = UserPromptPart(_content(message, where))
    elif role == "tool":
        call_id = str(message.get("tool_call_id"))
        if call_id not in names:
            raise DataError(f"{where}: a tool message answers the call '{call_id}', but no message before it makes it")
        part = ToolReturnPart(names[call_id], _text(message, where), tool_call_id=call_id)
    else:
        raise DataError(f"{where}: unknown role {role!r}; expected system, user, assistant or tool")
    return ModelRequest(parts=[part])


def _reply_parts(message: Json, names: dict[str, str], where: str) -> list[ModelResponsePart]:
    parts: list[ModelResponsePart] = [TextPart(_text(message, where))] if message.get("content") else []
    for call in message.get("tool_calls") or ():
        name, call_id = call["function"]["name"], call["id"]
        names[call_id] = name
        parts.append(ToolCallPart(name, call["function"]["arguments"], tool_call_id=call_id))
    return parts


def _text(message: Json, where: str) -> str:
    content = _content(message, where)
    if not isinstance(content, str):
        raise DataError(f"{where}: a {message.get('role')} message must be text")
    return content


def _content(message: Json, where: str) -> str | list[UserContent]:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = [_part(part, where) for part in content or ()]
    if all(isinstance(part, str) for part in parts):
        return "".join(map(str, parts))
    return parts


def _part(part: Json, where: str) -> UserContent:
    if part.get("type") == "text":
        return str(part["text"])
    if part.get("type") == "image_url":
        url = part["image_url"]["url"]
        return BinaryContent.from_data_uri(url) if url.startswith("data:") else ImageUrl(url)
    raise DataError(f"{where}: a message has a part of type {part.get('type')!r}; expected text or image_url")
