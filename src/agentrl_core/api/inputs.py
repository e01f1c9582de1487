"""Input of an adapted agent, made from a task's row: its messages, or its query as one text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl_core.errors import DataError


def agent_input(data: Mapping[str, Any], *, input_key: str | None = None) -> list[dict[str, Any]] | str:
    """Return the row's `messages`, in OpenAI's format, or the field that `input_key` names.

    A run makes `messages` of a task's `query`; a row made by hand may have the `query` only, which is then returned.

    Raises `DataError` if the row has none of them.
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
    """Return an agent's input as messages; a text becomes one user message."""
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def as_text(given: list[dict[str, Any]] | str, *, task_id: object = None) -> str:
    """Return an agent's input as one text, for frameworks whose agents take a prompt.

    Raises `DataError` for messages other than one user message with a text, because nothing may be left out.
    """
    if isinstance(given, str):
        return given
    roles = [str(message.get("role")) for message in given]
    if roles == ["user"] and isinstance(given[0].get("content"), str):
        return str(given[0]["content"])
    raise DataError(
        f"task '{task_id}': agents of this framework take one text; expected a single user message whose content is a "
        f"text, found `messages` with the roles {', '.join(roles)}; fix: give the row a `query`, and give instructions "
        "to the agent itself"
    )
