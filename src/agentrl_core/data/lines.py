"""Reader of JSONL files for tasks and demonstrations; it collects all bad lines and reports them with their numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from agentrl_core.errors import DataError

T = TypeVar("T")

_SHOWN_PROBLEMS = 20
"""Largest number of bad lines that are reported one by one."""


class BadLineError(ValueError):
    """A line does not have the expected form; its message does not name the file and line."""


def read_objects(path: Path, parse: Callable[[dict[str, Any], int], T], *, what: str) -> list[T]:
    """Return `parse(object, line number)` of each line; `parse` may raise `BadLineError`.

    Blank lines are skipped. Raises DataError with one line per problem, and for a file without objects. `what` names
    the objects in messages, such as `task`.
    """
    found: list[T] = []
    problems: list[str] = []
    for number, line in enumerate(read_lines(path, what=what), start=1):
        if not line.strip():
            continue
        try:
            found.append(parse(_parse_object(line), number))
        except BadLineError as error:
            problems.append(f"{path}:{number}: {error}")
    if problems:
        more = len(problems) - _SHOWN_PROBLEMS
        shown = problems[:_SHOWN_PROBLEMS] + ([f"{path}: {more} more problems"] if more > 0 else [])
        raise DataError("\n".join(shown))
    if not found:
        raise DataError(f"{path}: no {what}s in the file; expected one JSON object per line")
    return found


def read_lines(path: Path, *, what: str) -> Iterator[bytes]:
    """Yield the lines of a file, without a byte order mark; raise DataError if it cannot be read.

    The lines are bytes, so that a line that is not UTF-8 can be reported with its number.
    """
    try:
        with path.open("rb") as file:
            for index, line in enumerate(file):
                yield line.removeprefix(b"\xef\xbb\xbf") if index == 0 else line
    except OSError as error:
        raise DataError(f"{path}: cannot read the {what} file: {error.strerror}") from error


def _parse_object(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode().rstrip(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise BadLineError(f"expected UTF-8 text, found the byte 0x{line[error.start]:02x}") from error
    except json.JSONDecodeError as error:
        raise BadLineError(f"not valid JSON: {error.msg} (column {error.colno})") from error
    except RecursionError as error:
        raise BadLineError("not valid JSON: nested too deeply") from error
    except BadLineError:
        raise
    # Python refuses whole numbers of more than 4300 digits (`sys.set_int_max_str_digits`).
    except ValueError as error:
        raise BadLineError("expected whole numbers that Python can read, found one with too many digits") from error
    if not isinstance(row, dict):
        raise BadLineError(f"expected a JSON object, found {kind(row)}")
    return row


def _refuse_constant(name: str) -> NoReturn:
    raise BadLineError(f"not valid JSON: {name} is not a JSON number")


def kind(value: Any) -> str:
    """Describe a JSON value for an error message."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "nothing"}
    empty = "an empty text" if value == "" else "an empty list" if value == [] else ""
    return empty or names.get(type(value), f"the number {value}")
