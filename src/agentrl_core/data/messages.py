"""Validation of a demonstration's messages, which brings them into the form that the gateway passes to templates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentrl_core.config.nearest import did_you_mean
from agentrl_core.data.lines import BadLineError, kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.types import Message

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""Known roles. A chat template may define others, but a role that nearly equals one of these is a typing error.

Such a message of an assistant would silently not be trained.
"""
_LARGEST_WEIGHT = 1_000_000
"""Largest weight, so that products and sums of weights fit into a 32-bit float."""
_SAID = ("content", "tool_calls", "reasoning_content")


def read_messages(given: Any, name: str, *, sampled: bool = False) -> tuple[list[Message], list[float]]:
    """Check a list of messages; return the messages without weights, and the weights; raise `BadLineError`.

    Text parts are joined, because templates expect one text; messages with images keep their parts. The role
    `developer` becomes `system`, as in the gateway. The default weight is 1 for an assistant's messages and 0 for
    others. `sampled` says that the replies were sampled from a policy, which may have sampled an empty reply.
    """
    if not isinstance(given, list) or not given:
        raise BadLineError(f"{name}: expected a list of messages, found {kind(given)}")
    messages: list[Message] = []
    weights: list[float] = []
    for index, message in enumerate(given):
        where = f"{name}.{index}"
        if not isinstance(message, dict):
            raise BadLineError(f"{where}: expected an object with a role, found {kind(message)}")
        role = _role(message, where)
        weights.append(_message_weight(message, role, where))
        if role == "assistant":
            _check_reply(message, where, may_be_silent=sampled or not weights[-1])
        messages.append(_plain(message, where))
    return messages, weights


def read_weight(value: Any, where: str) -> float:
    """Return a weight as float; raise `BadLineError` unless it is a number from 0 to `_LARGEST_WEIGHT`."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _LARGEST_WEIGHT:
        raise BadLineError(f"{where}: expected a number from 0 to {_LARGEST_WEIGHT}, found {kind(value)}")
    return float(value)


def _role(message: Mapping[str, Any], where: str) -> str:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise BadLineError(f"{where}.role: expected a text, found {kind(role)}")
    if role not in _ROLES and (meant := did_you_mean(role, _ROLES)):
        raise BadLineError(f"{where}.role: {role!r} is not a role of a chat{meant}")
    return role


def _message_weight(message: Mapping[str, Any], role: str, where: str) -> float:
    weight = message.get("weight")
    if role != "assistant" and weight:
        raise BadLineError(f"{where}.weight: only assistant messages are trained, but this one has the role {role}")
    default = 1.0 if role == "assistant" else 0.0
    return default if weight is None else read_weight(weight, f"{where}.weight")


def _check_reply(message: Mapping[str, Any], where: str, *, may_be_silent: bool) -> None:
    """Raise `BadLineError` for an assistant's message that is empty by accident.

    From such a message the policy would learn to end its turn at once.
    """
    if message.get("function_call") is not None:
        raise BadLineError(
            f"{where}.function_call: is OpenAI's old form, which chat templates do not support; use tool_calls"
        )
    if not message.keys() & set(_SAID):
        raise BadLineError(f"{where}: expected an assistant message with `content` or `tool_calls`, found neither")
    if not may_be_silent and message.get("content") is None and not any(message.get(name) for name in _SAID):
        raise BadLineError(
            f"{where}: its content is null and it calls no tool, so the model would learn to give empty replies; "
            "give it content or tool_calls, or the weight 0"
        )


def _plain(message: Mapping[str, Any], where: str) -> Message:
    plain = {key: value for key, value in message.items() if key != "weight"}
    if plain["role"] == "developer":
        plain["role"] = "system"
    if "content" in plain:
        plain["content"] = _content(plain["content"], f"{where}.content")
    return plain


def _content(value: Any, where: str) -> Any:
    """Return the content as one text, or as its parts if some are not text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise BadLineError(f"{where}: expected a text, a list of parts or null, found {kind(value)}")
    texts = []
    for index, part in enumerate(value):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise BadLineError(
                f'{where}.{index}: expected a part like {{"type": "text", "text": …}}, found {kind(part)}'
            )
        if part["type"] == "text":
            if not isinstance(part.get("text"), str):
                raise BadLineError(f"{where}.{index}.text: expected a text, found {kind(part.get('text'))}")
            texts.append(part["text"])
    return "".join(texts) if len(texts) == len(value) else value
