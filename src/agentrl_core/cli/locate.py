"""From what a user calls a run (its name, its folder, its database, nothing) to its store."""

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

RunsOption: TypeAlias = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder of the runs.")]


def find_directory(run: str, runs: Path) -> Path:
    """Return the folder of a run, given its name under `runs`, its own path or its database's; else `UsageError`."""
    for path in (runs / run, Path(run)):
        if path.is_dir():
            return path
        if path.is_file():
            return path.parent
    names = sorted(path.parent.name for path in runs.glob(f"*/{DATABASE_NAME}"))
    known = did_you_mean(run, names) or (f" (runs there: {', '.join(names)})" if names else f" ({runs} has no runs)")
    raise UsageError(f"no run '{run}' in {runs}{known}; name one of `{command_line('runs', 'list')}`, or its folder")


def databases_of(runs: Path) -> list[Path]:
    """Return the databases of all runs, the one written last at the end."""
    return sorted(runs.glob(f"*/{DATABASE_NAME}"), key=last_write)


def newest_database(runs: Path) -> Path:
    """Return the database that was written last; `UsageError` if there is none."""
    databases = databases_of(runs)
    if not databases:
        raise UsageError(
            f"no runs in {runs.absolute()}; start one with `{command_line('run', 'CONFIG')}`, or give --runs DIR"
        )
    return databases[-1]


def last_write(database: Path) -> float:
    """Return when a database was written last, in Unix seconds; recent writes are in its write-ahead log."""
    written = database.stat().st_mtime
    log = database.with_name(f"{database.name}-wal")
    with contextlib.suppress(FileNotFoundError):
        found = log.stat()
        if found.st_size:  # a mere reader leaves an empty one
            written = max(written, found.st_mtime)
    return written


def find_database(run: str | None, runs: Path) -> Path:
    """Return the database of a run; of the one written last where none is named."""
    if run is None:
        return newest_database(runs)
    named = Path(run)
    database = named if named.is_file() else find_directory(run, runs) / DATABASE_NAME
    if not database.is_file():
        raise UsageError(f"{database.parent} holds no {DATABASE_NAME}: not a run's folder, or a run with another store")
    return database


def model_directory(database: Path, row: RunRow) -> Path | None:
    """Return the folder with a run's tokenizer and template; None where none of its own or its config's is here."""
    folders = [database.parent / "model", *sorted((database.parent / "checkpoints").glob("step-*"))]
    snapshot, named = database.parent / "config.json", (row.config.get("model") or {}).get("path")
    if named and snapshot.is_file():
        base_dir = json.loads(snapshot.read_text(encoding="utf-8"))["base_dir"]
        folders.append(Path(base_dir) / Path(named).expanduser())
    return next((folder for folder in folders if (folder / "tokenizer.json").is_file()), None)


def find_record(record: str, runs: Path) -> Path:
    """Return the database of the run that has a record, given its id or its beginning; the newest such run's.

    Raises `UsageError` where no run has it.
    """
    newest_first = databases_of(runs)[::-1] or [newest_database(runs)]
    known: list[str] = []
    broken: list[str] = []
    for database in newest_first:
        with contextlib.ExitStack() as closing:
            try:
                store, row = closing.enter_context(open_run(str(database), runs))
            except (UsageError, StoreError) as error:  # another run may have it
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
    """Open the store of a run for reading, also while it is alive; where none is named, of the one written last."""
    database = find_database(run, runs)
    store = SQLiteStore.read(database)
    try:
        rows = asyncio.run(store.runs())
        if not rows:
            raise UsageError(f"{database}: no run was started in this database yet")
        yield store, next((row for row in rows if row.id == database.absolute().parent.name), rows[-1])
    finally:
        asyncio.run(store.close())
