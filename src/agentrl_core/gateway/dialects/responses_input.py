"""Convert the Responses API's input items to messages in the form that chat templates render.

A client sends one earlier reply back as several items: reasoning, a message, calls. They must become one assistant's
message again, or the conversation is not recognised as the one that was sampled.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs
import orjson

from agentrl_core.errors import RequestError
from agentrl_core.gateway.call_types import custom_arguments
from agentrl_core.gateway.dialects.client_tools import flat_name
from agentrl_core.gateway.dialects.fields import missing, text_of, wrong_type
from agentrl_core.gateway.dialects.openai_messages import image_part
from agentrl_core.gateway.dialects.shape import anything, either, listed, text

if TYPE_CHECKING:
    from agentrl_core.types import Message

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_REASONING, _MESSAGE, _CALL = range(3)
"""Ranks of item kinds, in the order in which a reply has them."""
_ITEM_ID = re.compile(r"(?:rs|msg|fc|ctc)_([0-9a-f]{32})(?:_\d+)?")
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}

INPUT = either(text(), listed(anything(), minItems=1), about="Text, or the items that follow the earlier response.")


def reply_of(item_id: Any) -> str:
    """Return the part of an item's id that it shares with its reply's id; empty if the gateway did not make the id."""
    match = _ITEM_ID.fullmatch(item_id) if isinstance(item_id, str) else None
    return match[1] if match else ""


def parse_input(value: Any) -> tuple[tuple[Message, ...], frozenset[str]]:
    """Check `input`, a text or a list of items; return messages, and the id stems (`reply_of`) of earlier replies."""
    if value is None:
        raise missing("input")
    if isinstance(value, str):
        return ({"role": "user", "content": value},), frozenset()
    if not isinstance(value, list) or not value:
        raise wrong_type("input", "must be text or a list with at least one item")
    conversation = _Conversation()
    for index, item in enumerate(value):
        conversation.add(item, f"input[{index}]")
    return tuple(conversation.messages), frozenset(conversation.replies)


@attrs.define
class _Turn:
    """Assistant's message that is assembled from items."""

    message: Message
    reply: str
    """Shared part of its items' ids (`reply_of`); empty while no item has an id from the gateway."""
    rank: int
    """Rank of its last item."""

    def takes(self, reply: str, rank: int) -> bool:
        """Return whether the next item may belong to the same reply."""
        if reply and self.reply:
            return reply == self.reply
        # Without ids, the order of items decides: a reply has several calls, but one message and one reasoning item.
        return rank > self.rank or rank == _CALL


class _Conversation:
    """Builds messages item by item."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._open: _Turn | None = None
        """Turn that the last item belongs to; None if it was no assistant's."""
        self.replies: dict[str, _Turn] = {}
        """Turns by the shared part of their items' ids."""

    def add(self, item: Any, where: str) -> None:
        """Add one item to its turn, or as a message; `RequestError` (400) names the item if it is invalid."""
        if not isinstance(item, dict):
            raise wrong_type(where, "must be an object")
        # The SDK's short form of a message has no type.
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind == "message":
            self._add_message(item, where)
        elif kind in ("function_call", "custom_tool_call"):
            self._turn(item, _CALL).setdefault("tool_calls", []).append(_call(item, where))
        elif kind in ("function_call_output", "custom_tool_call_output"):
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
                "function_call_output, custom_tool_call, custom_tool_call_output, reasoning or item_reference",
                param=where,
            )

    def _add_message(self, item: dict[str, Any], where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise wrong_type(f"{where}.role", f"must be one of {', '.join(_ROLES)}")
        content = _content(item.get("content"), f"{where}.content")
        if role != "assistant":
            self._append({"role": _ROLES[role], "content": content})
        elif isinstance(content, list):
            raise wrong_type(f"{where}.content", "of an assistant must be text")
        else:
            self._turn(item, _MESSAGE)["content"] += content

    def _append(self, message: Message) -> None:
        self.messages.append(message)
        self._open = None

    def _turn(self, item: dict[str, Any], rank: int) -> Message:
        """Return the assistant's message that an item belongs to, appending a new one if there is none."""
        reply = reply_of(item.get("id"))
        # Found by id even if it is not the last turn: clients may put tool results between the calls of one reply.
        turn = self.replies.get(reply) if reply else None
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
    """Return content as text, or as a list of parts if there are images."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(where, "must be text or a list of parts")
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
    raise wrong_type(where, 'must look like {"type": "input_text", "text": …}')


def _call(item: dict[str, Any], where: str) -> dict[str, Any]:
    if item["type"] == "custom_tool_call":
        arguments: Any = custom_arguments(_text(item, "input", where))
    else:
        arguments = item.get("arguments")
    # Some frameworks send the object itself.
    if isinstance(arguments, dict):
        arguments = orjson.dumps(arguments).decode()
    if not isinstance(arguments, str | None):
        raise wrong_type(f"{where}.arguments", "must be JSON text")
    name = flat_name(_text(item, "name", where), text_of(item, "namespace", where))
    return {
        "id": _text(item, "call_id", where),
        "type": "function",
        "function": {"name": name, "arguments": arguments or "{}"},
    }


def _thoughts(item: dict[str, Any], where: str) -> str:
    """Return the text of a reasoning item; encrypted reasoning is not the gateway's and is ignored."""
    found = []
    for key in "content", "summary":
        parts = item.get(key) or []
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise wrong_type(f"{where}.{key}", "must be a list of parts")
        found.append("".join(_text(part, "text", f"{where}.{key}") for part in parts))
    # The content has the reasoning in full, so the summary counts only without it.
    return found[0] or found[1]


def _text(raw: dict[str, Any], key: str, where: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str):
        raise wrong_type(f"{where}.{key}", "must be a string")
    return value
