"""The peer of the benchmark `store`: the same episodes in two plain SQLite tables, one transaction per operation.

`python -m tests.benchmarks.store.plain FILE`: prints a line once it is ready, begins when its standard input ends, and
prints its claims' times as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.store.work import EPISODE_BYTES

_TABLES = """
CREATE TABLE episodes (id INTEGER PRIMARY KEY, owner TEXT, state TEXT NOT NULL, reward REAL);
CREATE INDEX waiting ON episodes (state, id);
CREATE TABLE calls (id INTEGER PRIMARY KEY, episode INTEGER NOT NULL, content BLOB NOT NULL);
"""


def create(path: Path, episodes: int) -> None:
    """Write the file with episodes that wait."""
    with contextlib.closing(_connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(_TABLES)
        with _transaction(db):
            db.executemany("INSERT INTO episodes (state) VALUES (?)", [("waiting",)] * episodes)


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=30, isolation_level=None)
    db.execute("PRAGMA synchronous = NORMAL")
    return db


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    yield
    db.execute("COMMIT")


def _work(path: Path) -> None:
    owner, content = str(os.getpid()), os.urandom(EPISODE_BYTES)
    claim_s = []
    with contextlib.closing(_connect(path)) as db:
        print("joined", flush=True)  # noqa: T201 - the parent waits for it
        sys.stdin.read()
        began, cpu_s = time.time(), time.process_time()
        while True:
            at = time.perf_counter()
            with _transaction(db):
                found = db.execute(
                    "UPDATE episodes SET state = 'running', owner = ? "
                    "WHERE id = (SELECT id FROM episodes WHERE state = 'waiting' ORDER BY id LIMIT 1) RETURNING id",
                    (owner,),
                ).fetchone()
            if found is None:
                break
            claim_s.append(time.perf_counter() - at)
            with _transaction(db):
                db.execute("INSERT INTO calls (episode, content) VALUES (?, ?)", (found[0], content))
            with _transaction(db):
                db.execute("UPDATE episodes SET state = 'scored', reward = 1.0 WHERE id = ?", found)
        ended, cpu_s = time.time(), time.process_time() - cpu_s
    result = {"episodes": len(claim_s), "claim_s": claim_s, "began": began, "ended": ended, "cpu_s": cpu_s}
    print(json.dumps(result), flush=True)  # noqa: T201


if __name__ == "__main__":
    _work(Path(sys.argv[1]))
