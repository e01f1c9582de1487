"""Bring the input items of OpenAI's Responses API into the one form of messages that templates see.

One generation comes back as several items: thoughts, a message, calls. They become one assistant's message again,
or the conversation would not be recognised.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs
import orjson

from agentrl_core.errors import RequestError
from agentrl_core.gateway.dialects.openai_messages import image_part

if TYPE_CHECKING:
    from agentrl_core.types import Message

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_REASONING, _MESSAGE, _CALL = range(3)
"""The order of a generation's items."""
_ITEM_ID = re.compile(r"(?:rs|msg|fc)_([0-9a-f]{32})(?:_\d+)?")
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def reply_of(item_id: Any) -> str:
    """Return what the id of an item has in common with the id of the reply that it came in; empty if nothing."""
    match = _ITEM_ID.fullmatch(item_id) if isinstance(item_id, str) else None
    return match[1] if match else ""


def parse_input(value: Any) -> tuple[tuple[Message, ...], frozenset[str]]:
    """Check `input`, a text or a list of items: messages, and what the ids of earlier replies' items have in common."""
    if value is None:
        raise RequestError(400, "missing_required_parameter", "input is missing", param="input")
    if isinstance(value, str):
        return ({"role": "user", "content": value},), frozenset()
    if not isinstance(value, list) or not value:
        raise _wrong("input", "must be text or a list with at least one item")
    conversation = _Conversation()
    for index, item in enumerate(value):
        conversation.add(item, f"input[{index}]")
    return tuple(conversation.messages), frozenset(conversation.replies)


@attrs.define
class _Turn:
    """An assistant's message that is put together of items."""

    message: Message
    reply: str
    """What the ids of its items have in common; empty as long as none has an id of ours."""
    rank: int
    """Of its last item."""

    def takes(self, reply: str, rank: int) -> bool:
        """Whether the next item may be of the same generation."""
        if reply and self.reply:
            return reply == self.reply
        return rank > self.rank or rank == _CALL  # a second message is a second turn, a second call is not


class _Conversation:
    """Messages that grow item by item."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._open: _Turn | None = None
        """The turn that the last item was part of."""
        self.replies: dict[str, _Turn] = {}

    def add(self, item: Any, where: str) -> None:
        """Append one item."""
        if not isinstance(item, dict):
            raise _wrong(where, "must be an object")
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind == "message":
            self._add_message(item, where)
        elif kind == "function_call":
            self._turn(item, _CALL).setdefault("tool_calls", []).append(_call(item, where))
        elif kind == "function_call_output":
            content = _content(item.get("output"), f"{where}.output")
            self._append({"role": "tool", "content": content, "tool_call_id": _text(item, "call_id", where)})
        elif kind == "reasoning":
            if thoughts := _thoughts(item, where):
                turn = self._turn(item, _REASONING)
                turn["reasoning_content"] = turn.get("reasoning_content", "") + thoughts
        else:
            raise RequestError(
                400,
                "unsupported_content",
                f"{where}: items of type {kind!r} are not supported; use message, function_call, "
                "function_call_output, reasoning or item_reference",
                param=where,
            )

    def _add_message(self, item: dict[str, Any], where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise _wrong(f"{where}.role", f"must be one of {', '.join(_ROLES)}")
        content = _content(item.get("content"), f"{where}.content")
        if role != "assistant":
            self._append({"role": _ROLES[role], "content": content})
        elif isinstance(content, list):
            raise _wrong(f"{where}.content", "of an assistant must be text")
        else:
            self._turn(item, _MESSAGE)["content"] += content

    def _append(self, message: Message) -> None:
        self.messages.append(message)
        self._open = None

    def _turn(self, item: dict[str, Any], rank: int) -> Message:
        """Return the assistant's message that an item is part of."""
        reply = reply_of(item.get("id"))
        turn = self.replies.get(reply) if reply else None  # results may stand between the calls of one reply
        if turn is None and self._open is not None and self._open.takes(reply, rank):
            turn = self._open
        if turn is None:
            turn = _Turn({"role": "assistant", "content": ""}, reply, rank)
            self._append(turn.message)
        turn.rank = rank
        if reply:
            turn.reply = reply
            self.replies[reply] = turn
        if turn.message is self.messages[-1]:
            self._open = turn
        return turn.message


def _content(value: Any, where: str) -> str | list[dict[str, Any]]:
    """Return text, or parts where images occur."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise _wrong(where, "must be text or a list of parts")
    parts = [_part(part, f"{where}[{index}]") for index, part in enumerate(value)]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: Any, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in _TEXT_PARTS and isinstance(part.get(_TEXT_PARTS[kind]), str):
        return {"type": "text", "text": part[_TEXT_PARTS[kind]]}
    if kind == "input_image":
        return image_part(part.get("image_url"), f"{where}.image_url")
    if isinstance(kind, str) and kind not in _TEXT_PARTS:
        raise RequestError(
            400,
            "unsupported_content",
            f"{where}: parts of type {kind!r} are not supported; use input_text and input_image",
            param=where,
        )
    raise _wrong(where, 'must look like {"type": "input_text", "text": …}')


def _call(item: dict[str, Any], where: str) -> dict[str, Any]:
    arguments = item.get("arguments")
    if isinstance(arguments, dict):  # some frameworks send the object itself
        arguments = orjson.dumps(arguments).decode()
    if not isinstance(arguments, str | None):
        raise _wrong(f"{where}.arguments", "must be JSON text")
    return {
        "id": _text(item, "call_id", where),
        "type": "function",
        "function": {"name": _text(item, "name", where), "arguments": arguments or "{}"},
    }


def _thoughts(item: dict[str, Any], where: str) -> str:
    """Return the text of a reasoning item; encrypted thoughts are none of ours."""
    found = []
    for key in "content", "summary":
        parts = item.get(key) or []
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise _wrong(f"{where}.{key}", "must be a list of parts")
        found.append("".join(_text(part, "text", f"{where}.{key}") for part in parts))
    return found[0] or found[1]


def _text(raw: dict[str, Any], key: str, where: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str):
        raise _wrong(f"{where}.{key}", "must be a string")
    return value


def _wrong(param: str, message: str) -> RequestError:
    return RequestError(400, "invalid_type", f"{param} {message}", param=param)
