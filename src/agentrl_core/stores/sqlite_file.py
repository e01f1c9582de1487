"""The SQLite file itself: opening it, its tables, and what its errors mean to the user."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from typing import TYPE_CHECKING

from agentrl_core.errors import StoreError
from agentrl_core.stores.files import make_private, private_opener
from agentrl_core.stores.sqlite_schema import APPLICATION_ID, SCHEMA_VERSION, create, is_old, patch, upgrade

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUSY_TIMEOUT_S = 30.0
"""How long a write waits for another process's write."""

_ADVICE = {
    sqlite3.SQLITE_FULL: "free space on that disk and go on; nothing that was stored before is lost",
    sqlite3.SQLITE_IOERR: "check that disk and the space left on it; nothing that was stored before is lost",
    sqlite3.SQLITE_BUSY: f"another process has held its write lock for {BUSY_TIMEOUT_S:.0f} s; end that process",
    sqlite3.SQLITE_READONLY: "give this user write permission on the file and its folder, or name another store path",
    sqlite3.SQLITE_CANTOPEN: "give this user permission on the folder, or name another store path",
    sqlite3.SQLITE_NOTADB: "expected a database that agentrl wrote; name another store path",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; go on from a copy of it, or start a new run",
}


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open the database at `path`, made with its folder where missing; `StoreError` for any other kind of file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{path}: cannot create its folder ({error.strerror}); name another store path") from error
    _make_private(path)
    with _opening(path, "rwc") as connection:
        with _transaction(connection, "BEGIN"):
            new = _is_new(connection, path)
        if new:
            with _transaction(connection, "BEGIN IMMEDIATE"):
                if _is_new(connection, path):  # no other process came first
                    create(connection)
        if is_old(connection):
            with _transaction(connection, "BEGIN IMMEDIATE"):
                upgrade(connection)
        _use_write_ahead_log(connection)
        connection.execute("PRAGMA foreign_keys = ON")
        # A commit is then in the operating system's hands before it returns, which a killed process cannot undo;
        # only a power cut may cost the last moments, never the file's integrity.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA busy_timeout = 0")  # from here on the store waits, without blocking its thread
        return connection


def _make_private(path: Path) -> None:
    """Make the file where it is missing, for its owner alone; SQLite gives its log the mode of the file.

    An existing one is not opened: that would take this process's locks on it, should it have any. What fails here
    fails again, with a better message, when SQLite opens the file.
    """
    with contextlib.suppress(OSError):
        os.close(private_opener(str(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        if file.is_file():
            make_private(file)


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open an existing database without the right to change it, also while another process writes."""
    with _opening(path, "ro") as connection:
        with _transaction(connection, "BEGIN"):
            if _is_new(connection, path):
                raise StoreError(f"{path}: an empty database; its run has stored nothing yet")
            if is_old(connection):
                patch(connection)
        return connection


class BusyError(StoreError):
    """Another process holds a lock on the file; it may be gone in a moment."""


def store_error(path: Path, what: str, error: sqlite3.Error) -> StoreError:
    """Say that SQLite refused to `what`: where, why, what to do."""
    code = _primary_code(error)
    advice = _ADVICE.get(code)
    kind = BusyError if code == sqlite3.SQLITE_BUSY else StoreError
    return kind(f"{path}: cannot {what}: {error}" + (f"; {advice}" if advice else ""))


@contextlib.contextmanager
def _opening(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    """Connect in autocommit mode, for any thread (the store has its own lock); close again where the context fails."""
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
    except sqlite3.Error as error:
        raise store_error(path, "open", error) from error
    try:
        yield connection
    except sqlite3.Error as error:
        connection.close()
        raise store_error(path, "open", error) from error
    except BaseException:
        connection.close()
        raise


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    """See and change the file as of one moment; whoever fails in it closes the connection, and nothing is changed."""
    connection.execute(begin)
    yield
    connection.execute("COMMIT")


def _is_new(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file has no tables yet; `StoreError` if what it has is not ours or newer than this code."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application == APPLICATION_ID and version > SCHEMA_VERSION:
        raise StoreError(
            f"{path}: written by a newer agentrl-core (its schema is {version}, this one knows up to "
            f"{SCHEMA_VERSION}); upgrade agentrl-core, or name another store path"
        )
    if application != APPLICATION_ID and (application or version or tables):
        raise StoreError(f"{path}: a SQLite database of another program; name another store path")
    return not tables


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch the file to WAL, once in its life; the switch needs the file for itself and does not wait by itself."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if _primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _primary_code(error: sqlite3.Error) -> int:
    """Return the kind of an error; its higher bytes, dropped here, say where in SQLite it happened."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
