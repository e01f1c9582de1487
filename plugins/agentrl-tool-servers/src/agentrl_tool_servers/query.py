"""One statement on a SQLite database, for `sql`: called in a worker process that is killed at the deadline.

SQLite's authorizer refuses what leaves the database (ATTACH, extensions). A single instruction of SQLite's machine may
take minutes, so only the end of the process bounds the time.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import attrs

_CELL_CHARS: Final = 500
"""Characters of a value that are shown."""
_VALUE_BYTES: Final = 1_000_000
"""Size of a value or row that a query may make, for example by zeroblob()."""
_COLUMNS: Final = 500
"""Columns of a table or a result."""
_STEPS: Final = 1000
"""Instructions of SQLite's machine between two looks at the clock."""
_STATEMENTS: Final = 200
"""Statements that `schema` shows."""
_PRAGMAS: Final = frozenset({"table_info", "table_list", "index_list", "index_info", "foreign_key_list"})
_READING: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_REFUSED: Final = frozenset({sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})


class RefusedError(Exception):
    """The statement is wrong, not allowed, or needs more than the limits; the message is for the model."""


@attrs.frozen(kw_only=True)
class QueryLimits:
    """Limits of one query."""

    timeout_s: float = 5.0
    rows: int = 100
    """Rows that are shown."""
    chars: int = 20_000
    """Characters that are shown."""
    memory_mb: int = 256
    database_bytes: int = 64_000_000
    """Size to which a database that may be written can grow."""


def run_query(database: Path, sql: str, *, writable: bool, limits: QueryLimits) -> str:
    """Return the rows of one statement as lines, or the number of changed rows; raise `RefusedError`.

    Sets SQLite's memory limit for the whole process.
    """
    deadline = time.monotonic() + limits.timeout_s
    with contextlib.closing(_opened(database, writable=writable)) as connection:
        for limit, value in (
            (sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_BYTES),
            (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 20_000),
            (sqlite3.SQLITE_LIMIT_COLUMN, _COLUMNS),
            (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
            (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200),
            (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 100),
        ):
            connection.setlimit(limit, value)
        connection.execute("PRAGMA temp_store = MEMORY")  # a sort of millions of rows fills no disk
        connection.execute(f"PRAGMA hard_heap_limit = {limits.memory_mb * 1_000_000}")
        if writable:
            (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
            connection.execute(f"PRAGMA max_page_count = {limits.database_bytes // page_bytes}")
        connection.set_authorizer(_authorizer(writable=writable))
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
        try:
            cursor = connection.execute(sql)
            if cursor.description is None:
                return f"done, {cursor.rowcount} rows changed" if cursor.rowcount >= 0 else "done"
            return _table([column[0] for column in cursor.description], cursor, limits)
        except sqlite3.Error as error:
            if time.monotonic() > deadline:
                raise RefusedError(took_too_long(limits)) from error
            raise RefusedError(str(error)) from error
        except MemoryError as error:
            raise RefusedError(too_much_memory(limits)) from error
        except (ValueError, OverflowError) as error:  # a null character, half of a surrogate pair
            raise RefusedError(f"not a statement: {error}") from error


def took_too_long(limits: QueryLimits) -> str:
    """Return the message about a query that was ended at its deadline."""
    return f"the query took longer than {limits.timeout_s:g} s"


def too_much_memory(limits: QueryLimits) -> str:
    """Return the message about a query that was ended for its memory."""
    return f"the query needs more memory than {limits.memory_mb:,} MB"


def show_schema(database: Path, *, writable: bool, limits: QueryLimits) -> str:
    """Return the statements that made the tables."""
    with contextlib.closing(_opened(database, writable=writable)) as connection:
        query = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name LIMIT ?"
        statements = (f"{sql};" for (sql,) in connection.execute(query, [_STATEMENTS]))
        lines, is_cut = _within(statements, limits.chars)
    return "\n".join([*lines, *([_cut(limits)] if is_cut else [])]) or "(no tables)"


def _opened(database: Path, *, writable: bool) -> sqlite3.Connection:
    # isolation_level None: the statement is its own transaction, and there is none to forget. A database that may be
    # written is always opened so, as the journal of a query that was killed has to be rolled back.
    mode = "rw" if writable else "ro"
    uri = f"{database.resolve().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=1.0)


def _authorizer(*, writable: bool) -> Callable[..., int]:
    def allow(action: int, first: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_PRAGMA:
            allowed = (first or "").lower() in _PRAGMAS
        elif action == sqlite3.SQLITE_FUNCTION:
            allowed = True  # loading extensions is off, so there are only SQLite's own
        else:
            allowed = action in _READING or (writable and action not in _REFUSED)
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    return allow


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]], limits: QueryLimits) -> str:
    """Return the rows as lines; reads one more than are shown, and each only after the one before is cut."""
    found = 0

    def lines() -> Iterable[str]:
        nonlocal found
        yield " | ".join(map(_cell, columns))
        for row in rows:
            found += 1
            if found > limits.rows:
                return
            yield " | ".join(map(_cell, row))

    shown, is_cut = _within(lines(), limits.chars)
    if is_cut:
        shown.append(_cut(limits))
    elif found > limits.rows:
        shown.append(f"[more than {limits.rows} rows; narrow the query or use LIMIT and OFFSET]")
    elif not found:
        shown.append("[no rows]")
    return "\n".join(shown)


def _within(lines: Iterable[str], most: int) -> tuple[list[str], bool]:
    """Return the lines that have at most so many characters together, the last one cut, and whether more were left."""
    shown: list[str] = []
    left = most
    for line in lines:
        if len(line) > left:
            return [*shown, f"{line[:left]}…"], True
        shown.append(line)
        left -= len(line) + 1
    return shown, False


def _cut(limits: QueryLimits) -> str:
    return f"[cut after {limits.chars:,} characters; ask for fewer rows or columns, or use substr()]"


def _cell(value: object) -> str:
    if value is None:
        return "NULL"
    text = f"<{len(value)} bytes>" if isinstance(value, bytes) else str(value)
    text = text.replace("\n", "\\n")
    return text if len(text) <= _CELL_CHARS else f"{text[:_CELL_CHARS]}… ({len(text):,} characters)"
