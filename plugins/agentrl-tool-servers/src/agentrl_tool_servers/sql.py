"""The server `sql`: queries on a SQLite database, read-only unless each episode has its own copy or all share one.

SQLite's authorizer refuses what leaves the database (ATTACH, extensions), its limits bound memory, and its progress
handler ends a query that takes too long.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import attrs
from mcp.server import MCPServer
from mcp.server.mcpserver import Context  # noqa: TC002 - the SDK reads the annotations
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from agentrl_tool_servers import command
from agentrl_tool_servers.episodes import EpisodeFolders, episode_of

Mode = Literal["read_only", "episode", "shared"]
_FILE: Final = "database.sqlite"
_CELL_CHARS: Final = 500
"""Characters of a value that are shown."""
_VALUE_BYTES: Final = 1_000_000
"""Size of a value or row that a query may make, for example by zeroblob()."""
_STEPS: Final = 1000
"""Instructions of SQLite's machine between two looks at the clock."""
_PRAGMAS: Final = frozenset({"table_info", "table_list", "index_list", "index_info", "foreign_key_list"})
_READING: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_REFUSED: Final = frozenset({sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})


@attrs.frozen(kw_only=True)
class QueryLimits:
    """Limits of one query."""

    timeout_s: float = 5.0
    rows: int = 100
    """Rows that are shown."""
    database_bytes: int = 64_000_000
    """Size to which a database that may be written can grow."""


def run_query(database: Path, sql: str, *, writable: bool, limits: QueryLimits) -> str:
    """Return the rows of one statement as lines, or the number of changed rows; raise ToolError with the reason."""
    deadline = time.monotonic() + limits.timeout_s
    # isolation_level None: the statement is its own transaction, and there is none to forget.
    mode = "rw" if writable else "ro"
    with contextlib.closing(
        sqlite3.connect(f"{database.resolve().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=1.0)
    ) as connection:
        for limit, value in (
            (sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_BYTES),
            (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 20_000),
            (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
            (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200),
            (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 100),
        ):
            connection.setlimit(limit, value)
        connection.execute("PRAGMA temp_store = MEMORY")  # a sort of millions of rows fills no disk
        if writable:
            (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
            connection.execute(f"PRAGMA max_page_count = {limits.database_bytes // page_bytes}")
        connection.set_authorizer(_authorizer(writable=writable))
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
        try:
            cursor = connection.execute(sql)
            rows = cursor.fetchmany(limits.rows + 1)
        except sqlite3.Error as error:
            if time.monotonic() > deadline:
                raise ToolError(f"the query took longer than {limits.timeout_s:g} s") from error
            raise ToolError(str(error)) from error
        except (ValueError, OverflowError) as error:  # a null character, half of a surrogate pair
            raise ToolError(f"not a statement: {error}") from error
        if cursor.description is None:
            return f"done, {cursor.rowcount} rows changed" if cursor.rowcount >= 0 else "done"
        return _table([column[0] for column in cursor.description], rows, limits.rows)


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


def _table(columns: list[str], rows: list[tuple[Any, ...]], limit: int) -> str:
    lines = [" | ".join(columns), *(" | ".join(map(_cell, row)) for row in rows[:limit])]
    if len(rows) > limit:
        lines.append(f"[more than {limit} rows; narrow the query or use LIMIT and OFFSET]")
    elif not rows:
        lines.append("[no rows]")
    return "\n".join(lines)


def _cell(value: object) -> str:
    if value is None:
        return "NULL"
    text = f"<{len(value)} bytes>" if isinstance(value, bytes) else str(value)
    text = text.replace("\n", "\\n")
    return text if len(text) <= _CELL_CHARS else f"{text[:_CELL_CHARS]}… ({len(text):,} characters)"


def server(
    database: str, mode: Mode = "read_only", *, limits: QueryLimits | None = None, idle_s: float = 1800
) -> MCPServer:
    """Return the server of a database file.

    In the mode `episode` every episode may change its own copy, which is removed `idle_s` after its last call; in the
    mode `shared` all episodes change the file itself.
    """
    limits = limits or QueryLimits()
    path = Path(database)
    _check(path)
    writable = mode != "read_only"
    use = _databases(path, idle_s) if mode == "episode" else lambda _context: contextlib.nullcontext(path)
    mcp = MCPServer("sql", log_level="WARNING")
    changes = "reads or changes the database" if writable else "reads; the database cannot be changed"
    hints = ToolAnnotations(read_only_hint=not writable, idempotent_hint=not writable, open_world_hint=False)

    # Functions without `async` run on threads of the SDK.
    @mcp.tool(
        description=f"Run one SQLite statement, which {changes}. Shows at most {limits.rows} rows.",
        annotations=hints,
        structured_output=False,
    )
    def query(context: Context[Any, Any], sql: Annotated[str, Field(description="one statement")]) -> str:
        with use(context) as file:
            return run_query(file, sql, writable=writable, limits=limits)

    @mcp.tool(
        annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
        structured_output=False,
    )
    def schema(context: Context[Any, Any]) -> str:
        """Show the statements that made the tables."""
        with use(context) as file:
            return _schema(file)

    return mcp


def _databases(path: Path, idle_s: float) -> Callable[[Context[Any, Any]], contextlib.AbstractContextManager[Path]]:
    folders = EpisodeFolders(lambda folder: _copy(path, folder / _FILE), idle_s=idle_s)

    @contextlib.contextmanager
    def use(context: Context[Any, Any]) -> Iterator[Path]:
        with folders.use(episode_of(context)) as folder:
            yield folder / _FILE

    return use


def _copy(source: Path, target: Path) -> None:
    """Copy by SQLite's backup, which includes what is still in the write-ahead log."""
    with contextlib.closing(_opened(source)) as old, contextlib.closing(sqlite3.connect(target)) as new:
        old.backup(new)


def _schema(path: Path) -> str:
    with contextlib.closing(_opened(path)) as connection:
        rows = connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name").fetchmany(200)
    return "\n".join(f"{sql};" for (sql,) in rows) or "(no tables)"


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def _check(path: Path) -> None:
    try:
        _schema(path)
    except sqlite3.Error as error:
        raise ValueError(f"{path}: expected a SQLite database ({error})") from error


def main(arguments: list[str] | None = None) -> None:
    """Run the server."""
    parser = command.parser("agentrl_tool_servers.sql", "Queries on a SQLite database.")
    parser.add_argument("database", help="path of the database file")
    parser.add_argument(
        "--mode",
        choices=("read_only", "episode", "shared"),
        default="read_only",
        help="episode: each may change its own copy; shared: all change the file itself",
    )
    default = QueryLimits()
    parser.add_argument("--timeout-s", type=float, default=default.timeout_s, help="time of a query")
    parser.add_argument("--rows", type=int, default=default.rows, help="rows that a query shows")
    parser.add_argument("--database-bytes", type=int, default=default.database_bytes)
    parser.add_argument("--memory-mb", type=int, default=512, help="memory of all queries together")
    parser.add_argument("--idle-s", type=float, default=1800, help="seconds without a call until a copy is removed")
    options = parser.parse_args(arguments)
    limits = QueryLimits(timeout_s=options.timeout_s, rows=options.rows, database_bytes=options.database_bytes)
    # For the whole process, hence only here: in the trainer's process it would bound the trainer's own store, too.
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"PRAGMA hard_heap_limit = {options.memory_mb * 1_000_000}")
    command.run(lambda: server(options.database, options.mode, limits=limits, idle_s=options.idle_s), options.http)


if __name__ == "__main__":
    main()
