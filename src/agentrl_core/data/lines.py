"""Objects from JSONL files, every bad line reported with its number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from agentrl_core.errors import DataError

T = TypeVar("T")

_SHOWN_PROBLEMS = 20


class BadLineError(ValueError):
    """A line is not what it should be."""


def read_objects(path: Path, parse: Callable[[dict[str, Any], int], T], *, what: str) -> list[T]:
    """Make something of each line: `parse(object, line number)`, which may raise `BadLineError`.

    Blank lines are skipped. Raises DataError with one line for each problem, and for a file with nothing in it.
    `what`: what a line is.
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
    """Yield the lines of a file, without a byte order mark."""
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
    except ValueError as error:  # Python reads no whole number of more than some thousand digits
        raise BadLineError("expected a whole number that Python reads, found one of too many digits") from error
    if not isinstance(row, dict):
        raise BadLineError(f"expected a JSON object, found {kind(row)}")
    return row


def _refuse_constant(name: str) -> NoReturn:
    raise BadLineError(f"not valid JSON: {name} is not a JSON number")


def kind(value: Any) -> str:
    """Say what a JSON value is."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "nothing"}
    empty = "an empty text" if value == "" else "an empty list" if value == [] else ""
    return empty or names.get(type(value), f"the number {value}")
