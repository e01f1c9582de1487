"""Reader of tasks from a JSONL file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl_core.data.agentcpm_fields import with_own_names
from agentrl_core.data.lines import BadLineError, kind, read_lines, read_objects
from agentrl_core.types import Task


def load_tasks(path: str | Path) -> list[Task]:
    """Read the tasks of a JSONL file, in its order.

    A line is an object with a unique `id`, with `query` (a text) or `messages` (in OpenAI's format), and optionally
    with `answer`, `scorer` and `answer_schema`. The agent's `data` has these fields and all others of the line. Blank
    lines are skipped, and null counts as absent; the names that AgentCPM's files use for missing fields are accepted.
    Raises DataError with one line per problem.
    """
    path = Path(path)
    lines: dict[str, int] = {}

    def parse(row: dict[str, Any], number: int) -> Task:
        task = _parse_task(row)
        # Returns this line's number for a new id, and the first line's number for a repeated one.
        earlier = lines.setdefault(task.id, number)
        if earlier != number:
            raise BadLineError(f"id '{task.id}' was used before, on line {earlier}")
        return task

    return read_objects(path, parse, what="task")


def line_of(path: str | Path, task_id: str) -> int | None:
    """Return the number of the line that holds a task, None if the file has no such task."""
    for number, line in enumerate(read_lines(Path(path), what="task"), start=1):
        if line.strip() and str(with_own_names(json.loads(line)).get("id")) == task_id:
            return number
    return None


def _parse_task(row: Mapping[str, Any]) -> Task:
    row = with_own_names(row)
    fields = {name: value for name, value in row.items() if value is not None}
    task_id = _id(fields)
    messages = _messages(fields)
    task = Task(
        id=task_id,
        data={**row, "id": task_id, "messages": messages},
        answer=_answer(fields.get("answer")),
        scorer=_text(fields, "scorer"),
        answer_schema=_schema(fields),
    )
    # These are stored as text. The other fields are stored as JSON, which escapes lone surrogates.
    for name in ("id", "answer", "scorer", "answer_schema"):
        if re.search("[\ud800-\udfff]", getattr(task, name) or ""):
            raise BadLineError(f"{name}: expected text that UTF-8 can encode, found half of a surrogate pair")
    return task


def _id(fields: Mapping[str, Any]) -> str:
    value = fields.get("id")
    if value is None:
        raise BadLineError("id: missing; every task needs a unique id")
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise BadLineError(f"id: expected a text or a whole number, found {kind(value)}")
    if value == "":
        raise BadLineError("id: expected a text that is not empty")
    return str(value)


def _messages(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the row's messages, or its query as one user message."""
    query, messages = _text(fields, "query"), fields.get("messages")
    if messages is None:
        if query is None:
            raise BadLineError("expected `query` (a text) or `messages` (a list), found neither")
        return [{"role": "user", "content": query}]
    if not isinstance(messages, list) or not messages:
        raise BadLineError(f"messages: expected a list of messages, found {kind(messages)}")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise BadLineError(f"messages.{index}: expected an object with a role, found {kind(message)}")
        if not isinstance(message.get("role"), str):
            raise BadLineError(f"messages.{index}.role: expected a text, found {kind(message.get('role'))}")
    return messages


def _answer(value: Any) -> str | None:
    """Return the reference as text, because scorers compare texts: `42` and `"42"` are the same answer."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):
        raise BadLineError("answer: expected a text, a number, true, false or a list, found an object")
    return json.dumps(value, ensure_ascii=False)


def _schema(fields: Mapping[str, Any]) -> str:
    schema = _text(fields, "answer_schema")
    if schema is None:
        return ""
    if not re.fullmatch(r"[^\s<>/]+", schema):
        raise BadLineError(f"answer_schema: expected a tag name or `boxed`, found '{schema}'")
    return schema


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise BadLineError(f"{name}: expected a text that is not empty, found {kind(value)}")
    return value
