"""Check that messages from a context policy are a conversation that a chat template can render."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from agentrl_core.types import Message

_ROLES = ("system", "developer", "user", "assistant", "tool")


def problem_of(messages: Any, history: Sequence[Message]) -> str:
    """Return in words what is wrong with messages that stand for `history`; empty if they can be sent.

    A tool message must follow the assistant's message with its call, unless `history` breaks this rule itself.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        return f"{type(messages).__name__}; expected a list of messages"
    if not messages:
        return "no messages; expected at least one"
    for index, message in enumerate(messages):
        if problem := _problem_of(message):
            return f"{problem} at position {index}"
    without_call = Counter(_results_without_call(messages)) - Counter(_results_without_call(history))
    if without_call:
        name = next(iter(without_call))
        return (
            f"the tool message of call '{name}' without its call; expected the assistant's message with that call "
            "directly before its results"
        )
    return ""


def _problem_of(message: Any) -> str:
    """Return what is wrong with a single message; empty if nothing is."""
    if not isinstance(message, Mapping):
        return f"{type(message).__name__} in place of a message"
    if message.get("role") not in _ROLES:
        return f"a message with the role {message.get('role')!r:.40}, none of {', '.join(_ROLES)},"
    if not isinstance(message.get("content"), str | list | tuple | None):
        return f"a message whose content is {type(message['content']).__name__}, not text,"
    calls = message.get("tool_calls")
    if calls is not None and not _are_calls(calls):
        return "a message with malformed tool_calls"
    try:
        orjson.dumps(message)
    except TypeError as error:
        return f"a message that is not JSON ({error})"
    return ""


def _are_calls(calls: Any) -> bool:
    if not isinstance(calls, list | tuple):
        return False
    functions = [call.get("function") if isinstance(call, Mapping) else None for call in calls]
    return all(
        isinstance(one, Mapping) and isinstance(one.get("name"), str) and isinstance(one.get("arguments"), str)
        for one in functions
    )


def _results_without_call(messages: Sequence[Message]) -> list[str]:
    """Return the call ids of tool messages that do not follow the assistant's message with that call."""
    found: list[str] = []
    known: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            name = str(message.get("tool_call_id") or "")
            if name not in known:
                found.append(name)
        else:
            known = {str(call.get("id") or "") for call in message.get("tool_calls") or ()}
    return found
