"""What an agent of a framework is given of a task: its messages, or its query as one text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl_core.errors import DataError


def agent_input(data: Mapping[str, Any], *, input_key: str | None = None) -> list[dict[str, Any]] | str:
    """Return the row's `messages`, a list of OpenAI's messages, else its `query`; or what `input_key` names.

    Raises `DataError` for a row that has neither.
    """
    for key in ("messages", "query") if input_key is None else (input_key,):
        found = data.get(key)
        if isinstance(found, str | list) and found:
            return found
    if input_key is None:
        missing = "has neither 'messages' nor 'query' for the agent"
    else:
        missing = f"has no '{input_key}', which the workflow's input_key names"
    raise DataError(f"task '{data.get('id')}' {missing}; it has {', '.join(data)}")


def as_messages(given: list[dict[str, Any]] | str) -> list[dict[str, Any]]:
    """Return an agent's input as messages: a text is what the user says."""
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def as_text(given: list[dict[str, Any]] | str, *, task_id: object = None) -> str:
    """Return an agent's input as one text, for frameworks whose agents take a prompt: the one user message's.

    Raises `DataError` where messages hold more than that one text: nothing is left out.
    """
    if isinstance(given, str):
        return given
    roles = [str(message.get("role")) for message in given]
    if roles == ["user"] and isinstance(given[0].get("content"), str):
        return str(given[0]["content"])
    raise DataError(
        f"task '{task_id}': this framework's agents take one text, and the row's `messages` are not one text of the "
        f"user ({', '.join(roles)}); give the row a `query`, and instructions to the agent itself"
    )
