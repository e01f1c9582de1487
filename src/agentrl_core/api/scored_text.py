"""Helpers with which scorers read an episode: the answer or the whole last reply, and the task's references."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from agentrl_core.api.scoring import ScoreRequest

Of: TypeAlias = Literal["answer", "reply"]
"""Text that is scored: the extracted answer, or the whole last reply."""


def scored_text(request: ScoreRequest, of: Of) -> str:
    """Return the extracted answer, or the text of the last message."""
    if of == "answer":
        return request.answer
    content = request.messages[-1].get("content") if request.messages else None
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or () if part.get("type") == "text")


def references(request: ScoreRequest) -> tuple[str, ...]:
    """Return the accepted answers as texts: the items if the task's `answer` is a list, else the answer itself.

    Raises ValueError if there is none.
    """
    # `request.reference` is the answer as one text; the list itself is only in the task's row.
    if request.reference is None:
        raise ValueError(f"task '{request.task.id}' has no answer to compare with")
    given = request.task.data.get("answer")
    if not isinstance(given, list):
        return (request.reference,)
    if not given:
        raise ValueError(f"task '{request.task.id}': its answer is an empty list")
    return tuple(item if isinstance(item, str) else _as_text(item) for item in given)


def _as_text(value: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)
