"""Other names of `id`, `query` and `answer` that task files of AgentCPM's AgentRL (another project) use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

QUERY = ("q", "Question", "question", "content", "instruction", "traj_question")
ANSWER = ("Final answer", "Final Answer", "Final sample answer", "expected_answer")


def with_own_names(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row that also has `id`, `query` and `answer`, where another name has the value of a missing one.

    A row with `messages` needs no `query`. The fields under their other names stay.
    """
    found = dict(row)
    inner = row.get("raw")
    raw = inner if isinstance(inner, Mapping) else {}
    if _absent(row, "id") and not _absent(row, "task_id"):
        found["id"] = row["task_id"]
    if _absent(row, "query") and _absent(row, "messages"):
        query = _first(row, QUERY) or _first_user_text(raw.get("messages"))
        if query is not None:
            found["query"] = query
    if _absent(row, "answer"):
        # `a` means an answer beside `q` only: elsewhere it may be any number.
        answer = _first(row, ("a", *ANSWER) if "q" in row else ANSWER)
        if answer is None:
            answer = _first(raw, ("expected_answer", "answer"))
        if answer is not None:
            found["answer"] = answer
    return found


def _absent(row: Mapping[str, Any], name: str) -> bool:
    return row.get(name) is None


def _first(row: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """Return the first value that a task may have as `query` or `answer`; objects and lists mean something else."""
    values = (row.get(name) for name in names)
    return next((value for value in values if isinstance(value, str | int | float) and value != ""), None)


def _first_user_text(messages: Any) -> str | None:
    """Return the text of the first user message."""
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, Mapping) and message.get("role") == "user":
            content = message.get("content")
            return content if isinstance(content, str) and content else None
    return None
