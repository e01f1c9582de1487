"""Tables of a SQLite store, and the upgrade of files that an earlier version wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

# "AGRT" in the file's header, by which `file` and this package tell a store from another program's database.
APPLICATION_ID = 0x41475254
SCHEMA_VERSION = 7
"""Number of the layout below. 1: the tables from runs to versions. 2: sessions, and the API and the upstream of an
interaction. 3: details of scores. 4: tasks by task set. 5: members, claims of groups, turns,
digests of interactions, and seals. 6: tool calls, marks of records, and processes of members.
7: sampling masks of interactions."""

_TABLES = """
CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    created_at REAL NOT NULL,
    status TEXT NOT NULL,
    config TEXT NOT NULL,
    components TEXT NOT NULL,
    error TEXT NOT NULL,
    sampling_closed INTEGER NOT NULL DEFAULT 0,
    admitted_steps INTEGER NOT NULL DEFAULT -1,
    replaced INTEGER NOT NULL DEFAULT 0,
    next_index INTEGER NOT NULL DEFAULT 0,
    wanted TEXT NOT NULL DEFAULT 'run',
    limits TEXT NOT NULL DEFAULT '{}',
    cancel TEXT NOT NULL DEFAULT '[]'
);
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
    sealed_calls INTEGER,
    marks TEXT NOT NULL DEFAULT '[]',
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
    digest TEXT NOT NULL,
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
    finished_at REAL NOT NULL,
    kept BLOB NOT NULL DEFAULT x''
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
    voided INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, version)
);
"""

_GROUPS = """
CREATE TABLE groups (
    run_id TEXT NOT NULL REFERENCES runs (id),
    id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    idx INTEGER NOT NULL,
    size INTEGER NOT NULL,
    version INTEGER NOT NULL,
    is_eval INTEGER NOT NULL,
    state TEXT NOT NULL,
    task_set TEXT NOT NULL,
    member_id TEXT NOT NULL DEFAULT '',
    tries INTEGER NOT NULL DEFAULT 0,
    takeovers INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, id)
);
CREATE INDEX groups_queue ON groups (run_id, idx) WHERE state IN ('open', 'ready') AND is_eval = 0;
CREATE INDEX groups_pending ON groups (run_id) WHERE state IN ('reserved', 'open', 'ready', 'taken') AND is_eval = 0;
CREATE INDEX groups_free ON groups (run_id, is_eval) WHERE state = 'open' AND member_id = '';
CREATE INDEX groups_held ON groups (member_id) WHERE member_id <> '';
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

_MEMBERS = """
CREATE TABLE members (
    id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES runs (id),
    role TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    joined_at REAL NOT NULL,
    lease_s REAL NOT NULL,
    config_digest TEXT NOT NULL,
    packages TEXT NOT NULL,
    url TEXT NOT NULL,
    state TEXT NOT NULL,
    beats INTEGER NOT NULL,
    report TEXT NOT NULL,
    process TEXT NOT NULL DEFAULT ''
);
CREATE INDEX members_by_run ON members (run_id);
CREATE UNIQUE INDEX members_trainer ON members (run_id) WHERE role = 'train' AND state = 'live';
"""
_LIVE_MEMBERS = "CREATE INDEX IF NOT EXISTS members_live ON members (run_id) WHERE state = 'live'"

_TURNS = """
CREATE TABLE turns (
    run_id TEXT NOT NULL REFERENCES runs (id),
    idx INTEGER NOT NULL,
    tries INTEGER NOT NULL,
    released INTEGER NOT NULL,
    PRIMARY KEY (run_id, idx)
) WITHOUT ROWID;
CREATE INDEX turns_waiting ON turns (run_id) WHERE released = 0;
"""

_SEALS = """
CREATE TABLE seals (
    run_id TEXT NOT NULL REFERENCES runs (id),
    number INTEGER NOT NULL,
    body TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (run_id, number)
);
CREATE INDEX records_unsealed ON records (run_id) WHERE sealed_calls IS NULL AND outcome <> 'running';
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

# The long columns come last: SQLite reads the others of a row without them.
_TOOL_CALLS = """
CREATE TABLE tool_calls (
    run_id TEXT NOT NULL,
    id TEXT NOT NULL,
    record_id TEXT NOT NULL REFERENCES records (id),
    seq INTEGER NOT NULL,
    digest TEXT NOT NULL,
    call_id TEXT NOT NULL,
    name TEXT NOT NULL,
    server TEXT NOT NULL,
    tool TEXT NOT NULL,
    isolation TEXT NOT NULL,
    outcome TEXT NOT NULL,
    error TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    middleware TEXT NOT NULL,
    started_at REAL NOT NULL,
    finished_at REAL NOT NULL,
    arguments TEXT NOT NULL,
    sent TEXT,
    shown TEXT NOT NULL,
    raw TEXT
);
CREATE UNIQUE INDEX tool_calls_by_record ON tool_calls (record_id, seq);
"""

_NEW_TABLES = {
    "sessions": _SESSIONS,
    "members": _MEMBERS,
    "turns": _TURNS,
    "seals": _SEALS,
    "tool_calls": _TOOL_CALLS,
}
"""Table that earlier versions lacked -> its statements."""

_TEXT, _NUMBER = "TEXT NOT NULL DEFAULT ", "INTEGER NOT NULL DEFAULT "
_NEW_COLUMNS = {
    "members": {"process": f"{_TEXT}''"},
    "runs": {
        "admitted_steps": f"{_NUMBER}-1",
        "replaced": f"{_NUMBER}0",
        "next_index": f"{_NUMBER}0",
        "wanted": f"{_TEXT}'run'",
        "limits": f"{_TEXT}'{{}}'",
        "cancel": f"{_TEXT}'[]'",
    },
    "versions": {"voided": f"{_NUMBER}0"},
    "interactions": {
        "api": f"{_TEXT}'chat'",
        "upstream": f"{_TEXT}''",
        "witness": f"{_TEXT}''",
        "retry_key": f"{_TEXT}''",
        "digest": f"{_TEXT}''",
        "kept": "BLOB NOT NULL DEFAULT x''",
    },
    "records": {
        "score_details": f"{_TEXT}'{{}}'",
        "task_set": f"{_TEXT}'train'",
        "sealed_calls": "INTEGER DEFAULT NULL",
        "marks": f"{_TEXT}'[]'",
    },
}
"""Table -> columns that earlier versions lacked -> their type and default."""

_OLD_TASKS = "SELECT rowid AS rowid, run_id, 'train' AS task_set, id, data, answer, scorer, answer_schema FROM {source}"
"""Tasks of a file without task sets.

It keeps one task per id, that of the first set to have it, and shows the records of all sets with it. Those tasks and
records therefore count as `train`.
"""

_OLD_GROUPS = """
    SELECT
        rowid AS rowid, run_id, id, task_id, idx, size, version, is_eval,
        CASE WHEN state = 'taken' AND (run_id, id) IN (
            SELECT steps.run_id, consumed.value FROM {steps} AS steps, json_each(steps.groups) AS consumed
            WHERE steps.voided = 0
        ) THEN 'trained' ELSE state END AS state,
        CASE WHEN is_eval THEN 'eval' ELSE 'train' END AS task_set,
        '' AS member_id, 0 AS tries, 0 AS takeovers
    FROM {source}
"""
"""Groups of a file without members: no one has them, and the groups of live steps are not marked."""

_OLD_TURNS = """
    INSERT INTO turns SELECT run_id, idx, sum(state = 'dropped'), 1 FROM groups WHERE is_eval = 0 GROUP BY run_id, idx
    HAVING NOT sum(state IN ('open', 'ready', 'taken', 'trained'))
"""
"""Add the positions that a file without turns still had to sample; its runs kept them in memory."""


def create(connection: sqlite3.Connection) -> None:
    """Create the tables and write the application id and the schema version into the file's header."""
    for script in (_TABLES, _GROUPS, _TASKS, *_NEW_TABLES.values()):
        _run(connection, script)
    connection.execute(_LIVE_MEMBERS)
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
    for table, column, kind in _missing_columns(connection):
        connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
    for table in _missing_tables(connection):
        _run(connection, _NEW_TABLES[table])
    connection.execute(_LIVE_MEMBERS)
    if _lacks(connection, "tasks", "task_set"):
        _rebuild(connection, "tasks", _TASKS, _OLD_TASKS)
    if _lacks(connection, "groups", "member_id"):
        _rebuild(connection, "groups", _GROUPS, _OLD_GROUPS)
        connection.execute(_OLD_TURNS)
        connection.execute(
            "UPDATE runs SET next_index = "
            "(SELECT coalesce(max(idx), -1) + 1 FROM groups WHERE run_id = runs.id AND is_eval = 0)"
        )
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def patch(connection: sqlite3.Connection) -> None:
    """Make a read-only connection see an old file as if it were upgraded, but for `turns` and positions.

    The views and tables are temporary, so they belong to the connection and leave the file unchanged.
    """
    lacking: dict[str, list[str]] = {}
    for table, column, kind in _missing_columns(connection):
        lacking.setdefault(table, []).append(f"{kind.partition(' DEFAULT ')[2]} AS {column}")
    # The queries of the store order by rowid, which a view has only if it selects it.
    views = {
        table: f"SELECT rowid AS rowid, *, {', '.join(columns)} FROM main.{table}"  # noqa: S608 - constants
        for table, columns in lacking.items()
    }
    if _lacks(connection, "tasks", "task_set"):
        views["tasks"] = _OLD_TASKS.format(source="main.tasks")
    if _lacks(connection, "groups", "member_id"):
        views["groups"] = _OLD_GROUPS.format(source="main.groups", steps="main.steps")
    for table, query in views.items():
        connection.execute(f"CREATE TEMP VIEW {table} AS {query}")
    for table in _missing_tables(connection):
        connection.execute(next(_statements(_NEW_TABLES[table])).replace("CREATE TABLE", "CREATE TEMP TABLE"))


def _rebuild(connection: sqlite3.Connection, table: str, script: str, query: str) -> None:
    """Replace a table by one with another definition; SQLite cannot change keys and checks of a table.

    `query` selects the rows from `{source}`. Foreign keys must be off: rows of other tables refer to the old ones.
    """
    statements = _statements(script)
    new = next(statements).replace(f"CREATE TABLE {table}", f"CREATE TABLE {table}_new")
    connection.execute(new)
    columns = ", ".join(row[1] for row in connection.execute(f"PRAGMA table_info({table}_new)"))
    selected = query.format(source=table, steps="steps")
    connection.execute(f"INSERT INTO {table}_new ({columns}) SELECT {columns} FROM ({selected}) ORDER BY rowid")  # noqa: S608 - constants
    # This order, because a rename of the old table would also change the foreign keys that name it.
    connection.execute(f"DROP TABLE {table}")
    connection.execute(f"ALTER TABLE {table}_new RENAME TO {table}")
    for statement in statements:
        connection.execute(statement)


def _missing_columns(connection: sqlite3.Connection) -> list[tuple[str, str, str]]:
    new = _missing_tables(connection)
    return [
        (table, column, kind)
        for table, columns in _NEW_COLUMNS.items()
        for column, kind in columns.items()
        if table not in new and _lacks(connection, table, column)
    ]


def _lacks(connection: sqlite3.Connection, table: str, column: str) -> bool:
    return column not in {row[1] for row in connection.execute(f"PRAGMA main.table_info({table})")}


def _missing_tables(connection: sqlite3.Connection) -> list[str]:
    there = {row[0] for row in connection.execute("SELECT name FROM main.sqlite_schema")}
    return [table for table in _NEW_TABLES if table not in there]


def _run(connection: sqlite3.Connection, script: str) -> None:
    for statement in _statements(script):
        connection.execute(statement)


def _statements(script: str) -> Iterator[str]:
    return filter(str.strip, script.split(";"))
