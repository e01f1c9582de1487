"""Tasks read from a JSONL file, every bad line reported with its number."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from agentrl_core.errors import DataError
from agentrl_core.types import Task

_SHOWN_PROBLEMS = 20


def load_tasks(path: str | Path) -> list[Task]:
    """Read the tasks of a JSONL file, in its order.

    A line is an object with a unique `id`, `query` (a text) or `messages` (in OpenAI's shape), and optionally
    `answer`, `scorer` and `answer_schema`. Everything else, and these too, reaches the agent's `data`. Blank
    lines are skipped; null counts as absent. Raises DataError with one line for each problem.
    """
    path = Path(path)
    tasks: list[Task] = []
    problems: list[str] = []
    lines: dict[str, int] = {}
    for number, line in enumerate(_read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            task = _parse_task(line)
        except _BadLineError as error:
            problems.append(f"{path}:{number}: {error}")
            continue
        if task.id in lines:
            problems.append(f"{path}:{number}: id '{task.id}' was used before, on line {lines[task.id]}")
        lines.setdefault(task.id, number)
        tasks.append(task)
    if not tasks and not problems:
        raise DataError(f"{path}: no tasks in the file; expected one JSON object per line")
    if problems:
        more = len(problems) - _SHOWN_PROBLEMS
        shown = problems[:_SHOWN_PROBLEMS] + ([f"{path}: {more} more problems"] if more > 0 else [])
        raise DataError("\n".join(shown))
    return tasks


def line_of(path: str | Path, task_id: str) -> int | None:
    """Return the number of the line on which a task of a file stands."""
    for number, line in enumerate(_read_lines(Path(path)), start=1):
        if line.strip() and str(json.loads(line).get("id")) == task_id:
            return number
    return None


class _BadLineError(ValueError):
    """A line is not a task."""


def _read_lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            for index, line in enumerate(file):
                yield line.removeprefix(b"\xef\xbb\xbf") if index == 0 else line
    except OSError as error:
        raise DataError(f"{path}: cannot read the task file: {error.strerror}") from error


def _parse_task(line: bytes) -> Task:
    row = _parse_row(line)
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
    for name in ("id", "answer", "scorer", "answer_schema"):  # the rest is kept as JSON, which escapes them
        if re.search("[\ud800-\udfff]", getattr(task, name) or ""):
            raise _BadLineError(f"{name}: expected text that UTF-8 can hold, found half of a surrogate pair")
    return task


def _parse_row(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise _BadLineError(f"expected UTF-8 text, found the byte 0x{line[error.start]:02x}") from error
    except json.JSONDecodeError as error:
        raise _BadLineError(f"not valid JSON: {error.msg} (column {error.colno})") from error
    except RecursionError as error:
        raise _BadLineError("not valid JSON: nested too deeply") from error
    except _BadLineError:
        raise
    except ValueError as error:  # Python reads no whole number of more than some thousand digits
        raise _BadLineError("expected a whole number that Python reads, found one of too many digits") from error
    if not isinstance(row, dict):
        raise _BadLineError(f"expected a JSON object, found {_kind(row)}")
    return row


def _refuse_constant(name: str) -> NoReturn:
    raise _BadLineError(f"not valid JSON: {name} is not a JSON number")


def _id(fields: Mapping[str, Any]) -> str:
    value = fields.get("id")
    if value is None:
        raise _BadLineError("id: missing; every task needs one of its own")
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise _BadLineError(f"id: expected a text or a whole number, found {_kind(value)}")
    if value == "":
        raise _BadLineError("id: expected a text that is not empty")
    return str(value)


def _messages(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the row's messages, or its query as one user message."""
    query, messages = _text(fields, "query"), fields.get("messages")
    if messages is None:
        if query is None:
            raise _BadLineError("expected `query` (a text) or `messages` (a list), found neither")
        return [{"role": "user", "content": query}]
    if not isinstance(messages, list) or not messages:
        raise _BadLineError(f"messages: expected a list of messages, found {_kind(messages)}")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise _BadLineError(f"messages.{index}: expected an object with a role, found {_kind(message)}")
        if not isinstance(message.get("role"), str):
            raise _BadLineError(f"messages.{index}.role: expected a text, found {_kind(message.get('role'))}")
    return messages


def _answer(value: Any) -> str | None:
    """Return the reference as text: scorers compare texts, and `42` and `"42"` are one answer."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):
        raise _BadLineError("answer: expected a text, a number, true, false or a list, found an object")
    return json.dumps(value, ensure_ascii=False)


def _schema(fields: Mapping[str, Any]) -> str:
    schema = _text(fields, "answer_schema")
    if schema is None:
        return "answer"
    if not re.fullmatch(r"[^\s<>/]+", schema):
        raise _BadLineError(f"answer_schema: expected a tag name or `boxed`, found '{schema}'")
    return schema


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise _BadLineError(f"{name}: expected a text that is not empty, found {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    """Say what a JSON value is."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "nothing"}
    empty = "an empty text" if value == "" else "an empty list" if value == [] else ""
    return empty or names.get(type(value), f"the number {value}")
