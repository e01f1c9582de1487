"""Tables of a SQLite store, and the upgrade of files that an earlier version wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

# "AGRT" in the file's header, by which `file` and this package tell a store from another program's database.
APPLICATION_ID = 0x41475254
SCHEMA_VERSION = 4
"""Number of the layout below. 1: the tables from runs to versions. 2: sessions, and the API and the upstream of an
interaction. 3: details of scores. 4: tasks by task set."""

_TABLES = """
CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    created_at REAL NOT NULL,
    status TEXT NOT NULL,
    config TEXT NOT NULL,
    components TEXT NOT NULL,
    error TEXT NOT NULL,
    sampling_closed INTEGER NOT NULL DEFAULT 0
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
    score_details TEXT NOT NULL DEFAULT '{}',
    task_set TEXT NOT NULL DEFAULT 'train',
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
    witness TEXT NOT NULL,
    retry_key TEXT NOT NULL,
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

_TASKS = """
CREATE TABLE tasks (
    run_id TEXT NOT NULL REFERENCES runs (id),
    task_set TEXT NOT NULL,
    id TEXT NOT NULL,
    data TEXT NOT NULL,
    answer TEXT,
    scorer TEXT,
    answer_schema TEXT NOT NULL,
    PRIMARY KEY (run_id, task_set, id)
);
"""

_SESSIONS = """
CREATE TABLE sessions (
    record_id TEXT PRIMARY KEY REFERENCES records (id),
    run_id TEXT NOT NULL REFERENCES runs (id),
    group_id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    key_hash BLOB NOT NULL,
    token_hash BLOB NOT NULL,
    seed_key TEXT NOT NULL,
    policy TEXT NOT NULL,
    opened_at REAL NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'ended', 'closed')),
    rewards TEXT NOT NULL
);
CREATE INDEX sessions_by_run ON sessions (run_id, opened_at);
"""

_NEW_COLUMNS = {
    "interactions": {"api": "'chat'", "upstream": "''", "witness": "''", "retry_key": "''"},
    "records": {"score_details": "'{}'", "task_set": "'train'"},
    "tasks": {"task_set": "'train'"},
}
"""Table -> columns that earlier versions lacked -> SQL default for their rows.

Earlier versions kept one task per id, that of the first set to have it, and showed the records of all sets with it.
Those tasks and records therefore count as `train`.
"""


def create(connection: sqlite3.Connection) -> None:
    """Create the tables and write the application id and the schema version into the file's header."""
    for statement in (*_statements(_TABLES), *_statements(_TASKS), *_statements(_SESSIONS)):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def is_old(connection: sqlite3.Connection) -> bool:
    """Return whether a store's file has an earlier schema version."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return bool(version < SCHEMA_VERSION)


def upgrade(connection: sqlite3.Connection) -> None:
    """Add the tables and columns that an old file lacks, in the transaction of the caller."""
    # The caller checked this before it had the write lock; another process may have upgraded the file meanwhile.
    if not is_old(connection):
        return
    # First of all, because the new table already has the column `task_set`.
    if _missing(connection, "tasks"):
        _rekey_tasks(connection)
    for table in _NEW_COLUMNS:
        for column, default in _missing(connection, table):
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} TEXT NOT NULL DEFAULT {default}")
    if not _has_sessions(connection):
        for statement in _statements(_SESSIONS):
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def patch(connection: sqlite3.Connection) -> None:
    """Make a read-only connection see an old file as if it were upgraded.

    The views and the table are temporary, so they belong to the connection and leave the file unchanged.
    """
    for table in _NEW_COLUMNS:
        columns = "".join(f", {default} AS {column}" for column, default in _missing(connection, table))
        # The queries of the store order by rowid, which a view has only if it selects it.
        if columns:
            connection.execute(f"CREATE TEMP VIEW {table} AS SELECT rowid AS rowid, *{columns} FROM main.{table}")  # noqa: S608 - constants
    if not _has_sessions(connection):
        connection.execute(next(_statements(_SESSIONS)).replace("CREATE TABLE", "CREATE TEMP TABLE"))


def _rekey_tasks(connection: sqlite3.Connection) -> None:
    """Copy the tasks into a table whose key includes the task set; SQLite cannot change the key of a table."""
    columns = "id, data, answer, scorer, answer_schema"
    connection.execute("ALTER TABLE tasks RENAME TO tasks_by_id")
    connection.execute(next(_statements(_TASKS)))
    connection.execute(
        f"INSERT INTO tasks (run_id, task_set, {columns}) "  # noqa: S608 - constants
        f"SELECT run_id, 'train', {columns} FROM tasks_by_id ORDER BY rowid"
    )
    connection.execute("DROP TABLE tasks_by_id")


def _missing(connection: sqlite3.Connection, table: str) -> list[tuple[str, str]]:
    there = {row[1] for row in connection.execute(f"PRAGMA main.table_info({table})")}
    return [item for item in _NEW_COLUMNS[table].items() if item[0] not in there]


def _has_sessions(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("SELECT 1 FROM main.sqlite_schema WHERE name = 'sessions'").fetchone())


def _statements(script: str) -> Iterator[str]:
    return filter(str.strip, script.split(";"))
