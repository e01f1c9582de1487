"""The export format `chat`: the messages of each branch in OpenAI's form, for people and for other tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentrl_core.data.export.branches import branches_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentrl_core.data.export.branches import Branch
    from agentrl_core.types import Episode, Message

_KEYS = ("name", "reasoning_content", "tool_call_id")
"""Keys of a message that are kept beside its role, content and tool calls."""


def chat_rows(episode: Episode) -> Iterator[dict[str, Any]]:
    """Yield a row for each branch of an episode, with the reward and outcome of its record."""
    record = episode.record
    for branch in branches_of(episode):
        tools = branch.calls[-1].tools
        yield {
            "messages": branch_messages(branch),
            **({"tools": [dict(tool) for tool in tools]} if tools else {}),
            "model": branch.calls[-1].upstream or branch.calls[-1].model,
            "task": record.task_id,
            "record": record.id,
            "branch": branch.index,
            "outcome": record.outcome.value,
            "reward": record.reward,
        }


def branch_messages(branch: Branch) -> list[Message]:
    """Return the dialogue of a branch: the messages of each request, followed by the reply."""
    return [openai_message(message) for call in branch.calls for message in (*call.messages, call.output)]


def openai_message(message: Mapping[str, Any]) -> Message:
    """Return a message with OpenAI's keys only, and the thoughts of reasoning models, which many servers take."""
    calls = [tool_call(call, place) for place, call in enumerate(message.get("tool_calls") or ())]
    content = message.get("content")
    return {
        "role": message["role"],
        # OpenAI has null beside tool calls, and a text everywhere else.
        "content": content if content is not None or calls else "",
        **{key: message[key] for key in _KEYS if message.get(key)},
        **({"tool_calls": calls} if calls else {}),
    }


def tool_call(call: Mapping[str, Any], place: int) -> dict[str, Any]:
    """Return a tool call with all fields of OpenAI's form; one without an id is named by its place in the message."""
    function = call.get("function") or {}
    return {
        "id": call.get("id") or f"call_{place}",
        "type": "function",
        "function": {"name": function.get("name") or "", "arguments": function.get("arguments") or "{}"},
    }
