"""The built-in store: one SQLite file per run, which several processes may read and write at the same time."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

from agentrl_core.api.audit import escaped
from agentrl_core.errors import StoreError
from agentrl_core.stores import sqlite_rows as rows
from agentrl_core.stores.sqlite_claims import SQLiteClaims
from agentrl_core.stores.sqlite_members import SQLiteMembers
from agentrl_core.stores.sqlite_seals import SQLiteSeals
from agentrl_core.stores.sqlite_tool_rows import TOOL_CALLS, tool_call_row
from agentrl_core.stores.sqlite_training import SQLiteTraining
from agentrl_core.types import Interaction, Outcome, Record, Task

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from agentrl_core.api.run_rows import RunRow, SessionRow
    from agentrl_core.types import ToolCall


class SQLiteStore(SQLiteMembers, SQLiteClaims, SQLiteTraining, SQLiteSeals):
    """A `Store` in one SQLite file in WAL mode; every call is one short transaction, committed before it returns.

    Committed data survives `kill -9`.
    """

    def _open(self, path: Path, connect: Callable[[Path], sqlite3.Connection]) -> None:
        super()._open(path, connect)
        # Keys of the tools that this process has stored, which saves a write per LLM call.
        self._stored_tools: set[tuple[str, bytes]] = set()

    async def create_run(self, run: RunRow) -> None:
        """Add a run; raise `StoreError` if its name exists."""
        async with self._transaction(f"add run '{run.id}'") as db:
            if db.execute("SELECT 1 FROM runs WHERE id = ?", (run.id,)).fetchone():
                raise StoreError(f"{self.path}: run '{run.id}' exists already; choose another name")
            db.execute(rows.RUNS.insert, rows.run_row(run))

    async def update_run(self, run_id: str, *, status: str, error: str = "", member_id: str = "") -> None:
        """Set the run's status."""
        async with self._transaction(f"update run '{run_id}'") as db:
            self._check_run(db, run_id, member_id)
            db.execute("UPDATE runs SET status = ?, error = ? WHERE id = ?", (status, escaped(error), run_id))

    async def add_tasks(self, run_id: str, tasks: Sequence[Task], *, task_set: str = "train") -> None:
        """Keep the tasks of one of a run's task sets; leave a task that is already there unchanged."""
        values = [rows.task_row(run_id, task, task_set) for task in tasks]
        async with self._transaction(f"add tasks of run '{run_id}'") as db:
            self._check_run(db, run_id)
            db.executemany(rows.TASKS.insert + " ON CONFLICT DO NOTHING", values)

    async def add_record(self, record: Record, *, member_id: str = "") -> None:
        """Announce a record with the outcome `running`; with `member_id`, `ClaimLostError` unless it has the group."""
        async with self._transaction(
            f"add record {record.id} to group {record.group_id} of run '{record.run_id}'"
        ) as db:
            if member_id:
                self._check_claim(db, record.run_id, record.group_id, member_id)
            db.execute(rows.RECORDS.insert, rows.record_row(record))

    async def add_interaction(self, run_id: str, interaction: Interaction) -> None:
        """Append a finished LLM call of an announced record; once this returns, it survives a killed process."""
        what = f"add interaction {interaction.id} to record {interaction.record_id}"
        # Two writes, not one transaction: tools without an interaction do no harm, and most calls find them stored.
        tools = None if not interaction.tools else await self._store_tools(run_id, interaction.tools, what)
        values = rows.interaction_row(run_id, interaction, tools)
        await self._write(what, rows.INTERACTIONS.insert, values)

    async def _store_tools(self, run_id: str, tools: rows.Tools, what: str) -> bytes:
        """Store the tools unless they are there; return the key of their row, which is shared by equal interactions."""
        value = rows.to_json_fast(tools, what)
        key = hashlib.blake2b(value.encode(), digest_size=16).digest()
        if (run_id, key) not in self._stored_tools:
            await self._write(what, "INSERT INTO tools VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (run_id, key, value))
            self._stored_tools.add((run_id, key))
        return key

    async def add_tool_call(self, run_id: str, call: ToolCall) -> None:
        """Append an ended tool call of an announced record; once this returns, it survives a killed process."""
        what = f"add tool call {call.id} to record {call.record_id}"
        await self._write(what, TOOL_CALLS.insert, tool_call_row(run_id, call))

    async def add_session(self, session: SessionRow) -> None:
        """Keep a session of an announced record."""
        async with self._transaction(f"add the session of record {session.record_id}") as db:
            db.execute(rows.SESSIONS.insert, rows.session_row(session))

    async def update_session(
        self, record_id: str, *, state: Literal["open", "ended", "closed"], rewards: Mapping[str, float]
    ) -> None:
        """Write the state and rewards of a record's session; once this returns, they survive a killed process."""
        what = f"the session of record {record_id}"
        values = (state, rows.to_json(dict(rewards), what), record_id)
        async with self._transaction(f"update {what}") as db:
            if not db.execute("UPDATE sessions SET state = ?, rewards = ? WHERE record_id = ?", values).rowcount:
                raise StoreError(f"{self.path}: there is no session of record {record_id} to update")

    async def finish_record(self, record: Record) -> bool:
        """Move a running record to its final outcome; return False and change nothing if it was not running."""
        if record.outcome is Outcome.RUNNING:
            raise ValueError(f"record {record.id}: expected a final outcome, got 'running'")
        _, _, _, _, _, _, _, outcome, reason, detail, *scores, _, finished_at, _, marks = rows.record_row(record)
        details = rows.to_json(dict(record.score_details), f"the score of record {record.id}")
        async with self._transaction(f"finish record {record.id}") as db:
            changed = db.execute(
                "UPDATE records SET outcome = ?, reason = ?, detail = ?, reward = ?, rewards = ?, score = ?, "
                "score_parts = ?, finished_at = ?, score_details = ?, marks = ? WHERE id = ? AND outcome = 'running'",
                (outcome, reason, detail, *scores, finished_at, details, marks, record.id),
            ).rowcount
            # No change is normal for a record that a resumed run has cancelled, but not for an unknown id.
            if not changed and not db.execute("SELECT 1 FROM records WHERE id = ?", (record.id,)).fetchone():
                raise StoreError(f"{self.path}: no record {record.id} to finish; it was never announced")
        return changed == 1
