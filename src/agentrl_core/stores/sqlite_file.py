"""Opening the file of a SQLite store: permissions, foreign files, upgrades, journal mode, errors with advice."""

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
"""Longest wait for a lock of another process."""

_DUPLICATE = "it is in this file already; if another process writes the same run, end that process"
_ADVICE = {
    sqlite3.SQLITE_FULL: "free space on that disk and resume; nothing that was stored before is lost",
    sqlite3.SQLITE_IOERR: "check that disk and the space left on it; nothing that was stored before is lost",
    sqlite3.SQLITE_BUSY: f"another process has held its write lock for {BUSY_TIMEOUT_S:.0f} s; end that process",
    sqlite3.SQLITE_READONLY: "give this user write permission on the file and its folder, or name another store path",
    sqlite3.SQLITE_CANTOPEN: "give this user permission on the folder, or name another store path",
    sqlite3.SQLITE_NOTADB: "expected a database that agentrl wrote; name another store path",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; continue from a copy of it, or start a new run",
    sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY: "its run, group or record is not in this file; name the store of its run",
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: _DUPLICATE,
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: _DUPLICATE,
}
"""Error code of SQLite, extended or primary -> advice to the user."""


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open the database at `path`; create it and its folder if missing; raise `StoreError` for any other file."""
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
                # Asked again under the write lock: another process may have created the tables meanwhile.
                if _is_new(connection, path):
                    create(connection)
        if is_old(connection):
            with _transaction(connection, "BEGIN IMMEDIATE"):
                upgrade(connection)
        _use_write_ahead_log(connection)
        connection.execute("PRAGMA foreign_keys = ON")
        # With NORMAL a commit hands its data to the operating system before it returns, so a killed process loses
        # nothing. Only a power cut can lose the last commits; it cannot damage the file.
        connection.execute("PRAGMA synchronous = NORMAL")
        # From here on the store itself waits for locks, without blocking its thread.
        connection.execute("PRAGMA busy_timeout = 0")
        return connection


def _make_private(path: Path) -> None:
    """Create a missing file with permissions for its owner only, and restrict an existing one.

    SQLite gives its log files the mode of the database file.
    """
    # An existing file must not be opened here (hence O_EXCL): closing any descriptor of a file drops all POSIX locks
    # that this process holds on it. Errors are ignored because SQLite reports them with a better message.
    with contextlib.suppress(OSError):
        os.close(private_opener(str(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        if file.is_file():
            make_private(file)


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open an existing database read-only, also while another process writes."""
    with _opening(path, "ro") as connection:
        with _transaction(connection, "BEGIN"):
            if _is_new(connection, path):
                raise StoreError(f"{path}: this database is empty; its run has stored nothing yet")
            if is_old(connection):
                patch(connection)
        return connection


class BusyError(StoreError):
    """Another process holds a lock on the file; a retry may succeed."""


def store_error(path: Path, what: str, error: sqlite3.Error) -> StoreError:
    """Return an error that names the path, the refused operation `what` (an infinitive), the reason and the advice."""
    code = _primary_code(error)
    advice = _ADVICE.get(getattr(error, "sqlite_errorcode", code)) or _ADVICE.get(code)
    kind = BusyError if code == sqlite3.SQLITE_BUSY else StoreError
    return kind(f"{path}: cannot {what}: {error}" + (f"; {advice}" if advice else ""))


@contextlib.contextmanager
def _opening(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    """Connect in autocommit mode and close the connection if the block raises.

    Any thread may use the connection; the store has a lock of its own.
    """
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
    """Run the block in one transaction.

    There is no rollback: a block that raises also closes the connection (`_opening`), which discards its changes.
    """
    connection.execute(begin)
    yield
    connection.execute("COMMIT")


def _is_new(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the file has no tables yet; raise `StoreError` if it is foreign or newer than this code."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application == APPLICATION_ID and version > SCHEMA_VERSION:
        raise StoreError(
            f"{path}: written by a newer agentrl-core (its schema is {version}, this one knows up to "
            f"{SCHEMA_VERSION}); upgrade agentrl-core, or name another store path"
        )
    if application != APPLICATION_ID and (application or version or tables):
        raise StoreError(f"{path}: this is a SQLite database of another program; name another store path")
    return not tables


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch the file to WAL mode, which it keeps; blocks for up to `BUSY_TIMEOUT_S`.

    The switch needs an exclusive lock, and SQLite's own timeout does not apply to it.
    """
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
    """Return the primary code of an error; the higher bytes of an extended code say where in SQLite it happened."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
