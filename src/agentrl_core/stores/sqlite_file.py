"""The SQLite file itself: opening it, its tables, and what its errors mean to the user."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from typing import TYPE_CHECKING

from agentrl_core.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

APPLICATION_ID = 0x41475254  # "AGRT" in the file's header: how `file` and we tell the file from a foreign database
SCHEMA_VERSION = 1

BUSY_TIMEOUT_S = 30.0
"""How long a write waits for another process's write."""

_SCHEMA = """
CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    created_at REAL NOT NULL,
    status TEXT NOT NULL,
    config TEXT NOT NULL,
    components TEXT NOT NULL,
    error TEXT NOT NULL,
    sampling_closed INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE tasks (
    run_id TEXT NOT NULL REFERENCES runs (id),
    id TEXT NOT NULL,
    data TEXT NOT NULL,
    answer TEXT,
    scorer TEXT,
    answer_schema TEXT NOT NULL,
    PRIMARY KEY (run_id, id)
);
CREATE TABLE groups (
    run_id TEXT NOT NULL REFERENCES runs (id),
    id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    idx INTEGER NOT NULL,
    size INTEGER NOT NULL,
    version INTEGER NOT NULL,
    is_eval INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'ready', 'dropped', 'taken', 'aside')),
    PRIMARY KEY (run_id, id)
);
CREATE INDEX groups_queue ON groups (run_id, idx) WHERE state IN ('open', 'ready') AND is_eval = 0;
CREATE TABLE records (
    id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES runs (id),
    task_id TEXT NOT NULL,
    group_id TEXT NOT NULL,
    sample_index INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    is_eval INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,
    reward REAL,
    rewards TEXT NOT NULL,
    score REAL,
    score_parts TEXT NOT NULL,
    started_at REAL NOT NULL,
    finished_at REAL NOT NULL,
    FOREIGN KEY (run_id, group_id) REFERENCES groups (run_id, id)
);
CREATE INDEX records_by_group ON records (run_id, group_id, sample_index, attempt);
CREATE INDEX records_by_start ON records (run_id, started_at);
CREATE INDEX records_by_task ON records (run_id, task_id, started_at);
CREATE INDEX records_running ON records (run_id) WHERE outcome = 'running';
CREATE TABLE tools (
    run_id TEXT NOT NULL REFERENCES runs (id),
    hash BLOB NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (run_id, hash)
);
CREATE TABLE interactions (
    run_id TEXT NOT NULL,
    id TEXT NOT NULL,
    record_id TEXT NOT NULL REFERENCES records (id),
    seq INTEGER NOT NULL,
    parent TEXT,
    prompt_ids BLOB NOT NULL,
    output_ids BLOB NOT NULL,
    logprobs BLOB NOT NULL,
    versions TEXT NOT NULL,
    messages TEXT NOT NULL,
    output TEXT NOT NULL,
    tools BLOB,
    sampling TEXT NOT NULL,
    requested TEXT NOT NULL,
    finish_reason TEXT NOT NULL,
    model TEXT NOT NULL,
    api TEXT NOT NULL,
    trainable INTEGER NOT NULL,
    upstream TEXT NOT NULL,
    cached_tokens INTEGER NOT NULL,
    tool_errors INTEGER NOT NULL,
    started_at REAL NOT NULL,
    finished_at REAL NOT NULL
);
CREATE UNIQUE INDEX interactions_by_record ON interactions (record_id, seq);
CREATE TABLE steps (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL REFERENCES runs (id),
    step INTEGER NOT NULL,
    version INTEGER NOT NULL,
    groups TEXT NOT NULL,
    records TEXT NOT NULL,
    metrics TEXT NOT NULL,
    voided INTEGER NOT NULL
);
CREATE UNIQUE INDEX steps_live ON steps (run_id, step) WHERE voided = 0;
CREATE INDEX steps_by_run ON steps (run_id, position);
CREATE TABLE versions (
    run_id TEXT NOT NULL REFERENCES runs (id),
    version INTEGER NOT NULL,
    step INTEGER NOT NULL,
    published_at REAL NOT NULL,
    PRIMARY KEY (run_id, version)
);
"""

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
    with _opening(path, "rwc") as connection:
        with _transaction(connection, "BEGIN"):
            new = _is_new(connection, path)
        if new:
            with _transaction(connection, "BEGIN IMMEDIATE"):
                if _is_new(connection, path):  # no other process came first
                    _create(connection)
        _use_write_ahead_log(connection)
        connection.execute("PRAGMA foreign_keys = ON")
        # A commit is then in the operating system's hands before it returns, which a killed process cannot undo;
        # only a power cut may cost the last moments, never the file's integrity.
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open an existing database without the right to change it, also while another process writes."""
    with _opening(path, "ro") as connection:
        with _transaction(connection, "BEGIN"):
            if _is_new(connection, path):
                raise StoreError(f"{path}: an empty database; its run has stored nothing yet")
        return connection


def store_error(path: Path, what: str, error: sqlite3.Error) -> StoreError:
    """Say that SQLite refused to `what`: where, why, what to do."""
    advice = _ADVICE.get(_primary_code(error))
    return StoreError(f"{path}: cannot {what}: {error}" + (f"; {advice}" if advice else ""))


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


def _create(connection: sqlite3.Connection) -> None:
    """Make the tables and sign the file."""
    for statement in filter(str.strip, _SCHEMA.split(";")):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


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
