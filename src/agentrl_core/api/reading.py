"""What a scorer reads of an episode: the answer or the whole reply, and the references."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from agentrl_core.api.scoring import ScoreRequest

Of: TypeAlias = Literal["answer", "reply"]
"""What is judged: the extracted answer, or the last reply as a whole."""


def judged_text(request: ScoreRequest, of: Of) -> str:
    """Return the answer, or the text of the last message."""
    if of == "answer":
        return request.answer
    content = request.messages[-1].get("content") if request.messages else None
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or () if part.get("type") == "text")


def references(request: ScoreRequest) -> tuple[str, ...]:
    """Return the texts of which any is right: the items where the task's `answer` is a list, else the answer.

    Raises ValueError where there is none.
    """
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
