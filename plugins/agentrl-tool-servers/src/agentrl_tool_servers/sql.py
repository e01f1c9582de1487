"""The server `sql`: queries on a SQLite database, read-only unless each episode has its own copy or all share one.

Each query runs in a process of its own, which is killed at the deadline, and an episode has only a few at a time: no
query holds up those of other episodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sqlite3
import sys
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from mcp.server import MCPServer
from mcp.server.mcpserver import Context  # noqa: TC002 - the SDK reads the annotations
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from agentrl_core.api.processes import CallTimeoutError, WorkerDiedError, run_in_process
from agentrl_tool_servers import command
from agentrl_tool_servers.episodes import EpisodeFolders, episode_of
from agentrl_tool_servers.query import (
    QueryLimits,
    RefusedError,
    run_query,
    show_schema,
    too_much_memory,
    took_too_long,
)

Mode = Literal["read_only", "episode", "shared"]
_FILE: Final = "database.sqlite"
_WORKERS: Final = max(4, os.cpu_count() or 1)
"""Queries that run at once."""
_PER_EPISODE: Final = 2
"""Queries of one episode that run at once."""
_GRACE_S: Final = 0.5
"""Time that a query has to end by itself at its deadline, which spares its process."""
_PYTHON_MB: Final = 64
"""Memory that the worker needs beside SQLite's, for one row and the result."""


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
    ask = _Queries(path, mode, limits, idle_s)
    mcp = MCPServer("sql", log_level="WARNING")
    changes = "reads or changes the database" if writable else "reads; the database cannot be changed"
    hints = ToolAnnotations(read_only_hint=not writable, idempotent_hint=not writable, open_world_hint=False)

    @mcp.tool(
        description=f"Run one SQLite statement, which {changes}. Shows at most {limits.rows} rows.",
        annotations=hints,
        structured_output=False,
    )
    async def query(context: Context[Any, Any], sql: Annotated[str, Field(description="one statement")]) -> str:
        return await ask.run(episode_of(context), run_query, sql)

    @mcp.tool(
        annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
        structured_output=False,
    )
    async def schema(context: Context[Any, Any]) -> str:
        """Show the statements that made the tables."""
        return await ask.run(episode_of(context), show_schema)

    return mcp


class _Queries:
    """Queries of all episodes, each in a process that is killed if it does not end."""

    def __init__(self, path: Path, mode: Mode, limits: QueryLimits, idle_s: float) -> None:
        self._path, self._mode, self._limits = path, mode, limits
        self._folders: EpisodeFolders | None = None
        if mode == "episode":
            self._folders = EpisodeFolders(lambda folder: _copy(path, folder / _FILE), idle_s=idle_s)
        self._places: weakref.WeakValueDictionary[str, asyncio.Semaphore] = weakref.WeakValueDictionary()

    async def run(self, episode: str, function: Callable[..., str], *arguments: str) -> str:
        """Return the result of a function of `query`; raise ToolError with the reason for the model."""
        limits = self._limits
        async with self._place(episode), self._database(episode) as path:
            call = functools.partial(function, writable=self._mode != "read_only", limits=limits)
            try:
                result: str = await run_in_process(
                    call,
                    path,
                    *arguments,
                    timeout_s=limits.timeout_s + _GRACE_S,
                    memory_mb=limits.memory_mb + _PYTHON_MB if sys.platform == "linux" else None,
                    max_workers=_WORKERS,
                    pool=f"sql-{limits.memory_mb}",  # SQLite's limit of a process can only be lowered
                )
            except CallTimeoutError as error:
                raise ToolError(took_too_long(limits)) from error
            except (WorkerDiedError, MemoryError) as error:
                raise ToolError(too_much_memory(limits)) from error
            except (RefusedError, sqlite3.Error) as error:
                raise ToolError(str(error)) from error
            return result

    def _place(self, episode: str) -> contextlib.AbstractAsyncContextManager[Any]:
        """Return what an episode holds during a query; calls that name none share all workers."""
        if not episode and self._folders is None:
            return contextlib.nullcontext()
        # Its own copy is for one call at a time; waiting for it here takes no thread.
        most = _PER_EPISODE if self._folders is None else 1
        return self._places.setdefault(episode, asyncio.Semaphore(most))

    @contextlib.asynccontextmanager
    async def _database(self, episode: str) -> AsyncIterator[Path]:
        if self._folders is None:
            yield self._path
            return
        # The first time it is copied: on a thread, which ends by itself if this call is cancelled.
        await asyncio.to_thread(self._copied, self._folders, episode)
        with self._folders.use(episode) as folder:
            yield folder / _FILE

    @staticmethod
    def _copied(folders: EpisodeFolders, episode: str) -> None:
        with folders.use(episode):
            pass


def _copy(source: Path, target: Path) -> None:
    """Copy by SQLite's backup, which includes what is still in the write-ahead log."""
    old, new = sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True), sqlite3.connect(target)
    with contextlib.closing(old), contextlib.closing(new):
        old.backup(new)


def _check(path: Path) -> None:
    try:
        show_schema(path, writable=False, limits=QueryLimits())
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
    parser.add_argument("--chars", type=int, default=default.chars, help="characters that a query shows")
    parser.add_argument("--memory-mb", type=int, default=default.memory_mb, help="memory of a query")
    parser.add_argument("--idle-s", type=float, default=1800, help="seconds without a call until a copy is removed")
    options = parser.parse_args(arguments)
    limits = QueryLimits(
        timeout_s=options.timeout_s,
        rows=options.rows,
        chars=options.chars,
        memory_mb=options.memory_mb,
        database_bytes=options.database_bytes,
    )
    command.run(lambda: server(options.database, options.mode, limits=limits, idle_s=options.idle_s), options.http)


if __name__ == "__main__":
    main()
