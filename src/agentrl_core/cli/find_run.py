"""Find a run on disk by its name, folder or database (default: the newest one), and open its store for reading."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from agentrl_core.config.invocation import command_line
from agentrl_core.config.nearest import did_you_mean
from agentrl_core.errors import StoreError, UsageError
from agentrl_core.stores.sqlite import SQLiteStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentrl_core.api.stores import RunRow

DATABASE_NAME = "agentrl.db"

RunsOption: TypeAlias = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder that holds the runs.")]


def find_directory(run: str, runs: Path) -> Path:
    """Return the folder of a run, given its name in `runs`, its path or its database's path.

    Raises `UsageError`, with similar names, if there is no such run.
    """
    for path in (runs / run, Path(run)):
        if path.is_dir():
            return path
        if path.is_file():
            return path.parent
    names = sorted(path.parent.name for path in runs.glob(f"*/{DATABASE_NAME}"))
    known = did_you_mean(run, names) or (f" (runs there: {', '.join(names)})" if names else f" ({runs} has no runs)")
    raise UsageError(
        f"no run '{run}' in {runs}{known}; give a name that `{command_line('runs', 'list')}` prints, or a folder"
    )


def databases_of(runs: Path) -> list[Path]:
    """Return the databases of all runs, sorted by last write, the newest last."""
    return sorted(runs.glob(f"*/{DATABASE_NAME}"), key=last_write)


def newest_database(runs: Path) -> Path:
    """Return the database that was written last; raise `UsageError` if there is none."""
    databases = databases_of(runs)
    if not databases:
        raise UsageError(
            f"no runs in {runs.absolute()}; start one with `{command_line('run', 'CONFIG')}`, or give --runs DIR"
        )
    return databases[-1]


def last_write(database: Path) -> float:
    """Return the time of a database's last write in Unix seconds; recent writes are in its write-ahead log."""
    written = database.stat().st_mtime
    log = database.with_name(f"{database.name}-wal")
    with contextlib.suppress(FileNotFoundError):
        found = log.stat()
        if found.st_size:  # a reader that writes nothing leaves an empty log with a new time
            written = max(written, found.st_mtime)
    return written


def find_database(run: str | None, runs: Path) -> Path:
    """Return the database of `run`, or of the run that was written last if `run` is None."""
    if run is None:
        return newest_database(runs)
    named = Path(run)
    database = named if named.is_file() else find_directory(run, runs) / DATABASE_NAME
    if not database.is_file():
        raise UsageError(
            f"{database.parent} contains no {DATABASE_NAME}: it is not a run directory, or its run uses another store"
        )
    return database


def model_directory(database: Path, row: RunRow) -> Path | None:
    """Return a folder with a run's tokenizer and chat template, from the run itself or from its config.

    None if none of them exists any more.
    """
    folders = [database.parent / "model", *sorted((database.parent / "checkpoints").glob("step-*"))]
    snapshot, named = database.parent / "config.json", (row.config.get("model") or {}).get("path")
    if named and snapshot.is_file():
        base_dir = json.loads(snapshot.read_text(encoding="utf-8"))["base_dir"]
        folders.append(Path(base_dir) / Path(named).expanduser())
    return next((folder for folder in folders if (folder / "tokenizer.json").is_file()), None)


def find_record(record: str, runs: Path) -> Path:
    """Return the database of the newest run that contains a record, given its id or the first characters of it.

    Raises `UsageError` if no run contains it.
    """
    newest_first = databases_of(runs)[::-1] or [newest_database(runs)]
    known: list[str] = []
    broken: list[str] = []
    for database in newest_first:
        with contextlib.ExitStack() as closing:
            try:
                store, row = closing.enter_context(open_run(str(database), runs))
            except (UsageError, StoreError) as error:  # another run may contain it
                broken.append(f"; {error}")
                continue
            if asyncio.run(store.episode(record)) is not None:
                return database
            known += [item.id for item in asyncio.run(store.records(row.id))]
    raise UsageError(
        f"no record '{record}' in any run of {runs}{did_you_mean(record, known)}; "
        f"`{command_line('trace', 'list', 'RUN')}` shows a run's records{''.join(broken)}"
    )


@contextlib.contextmanager
def open_run(run: str | None, runs: Path) -> Iterator[tuple[SQLiteStore, RunRow]]:
    """Open the store of a run for reading, and yield it with the run's row; the run may still be going.

    `run` as None means the run that was written last.
    """
    database = find_database(run, runs)
    store = SQLiteStore.read(database)
    try:
        rows = asyncio.run(store.runs())
        if not rows:
            raise UsageError(f"{database}: this database does not contain a run yet")
        yield store, next((row for row in rows if row.id == database.absolute().parent.name), rows[-1])
    finally:
        asyncio.run(store.close())
