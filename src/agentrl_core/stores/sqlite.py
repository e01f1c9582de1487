"""The built-in store: one SQLite file per run, written by one process and readable by others at the same time."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sqlite3
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import attrs

from agentrl_core.api.group_queue import next_groups
from agentrl_core.api.stores import RecordUsage, ResumePoint, RunRow, SessionRow, StepRow
from agentrl_core.concurrency.wakeups import Wakeups
from agentrl_core.errors import StoreError, UnstorableError
from agentrl_core.stores import sqlite_file
from agentrl_core.stores import sqlite_rows as rows
from agentrl_core.stores.sqlite_file import BusyError, open_for_reading, open_for_writing, store_error
from agentrl_core.stores.sqlite_queue import LEFT, QUEUE, WaitingGroup
from agentrl_core.stores.sqlite_schema import SCHEMA_VERSION
from agentrl_core.types import Episode, Group, Interaction, Outcome, Record, Task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from agentrl_core.api.group_queue import OvertakeLimits
    from agentrl_core.types import Message

_T = TypeVar("_T")

RECHECK_S = 0.5
"""Period at which `take_groups` looks for groups of other processes; groups of this process wake it at once."""

_TURN_S = 0.002
"""Longest time that a call blocks its event loop to wait for a call of another thread, which usually takes less."""
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.001, 0.05
"""First and longest pause of a call that met a lock; each pause is twice as long as the one before."""


class SQLiteStore:
    """A `Store` in one SQLite file in WAL mode; every call is one short transaction, committed before it returns.

    One connection serves all threads and event loops of the process, one call at a time. A call takes well under a
    millisecond, which is less than the way to a worker thread and back. A call that meets a lock retries later and
    does not block its event loop meanwhile. Committed data survives `kill -9`.
    """

    def __init__(self, *, path: Path) -> None:
        self._open(Path(path), open_for_writing)

    @classmethod
    def read(cls, path: Path) -> SQLiteStore:
        """Open an existing file read-only, also while its run is active; writes raise `StoreError`."""
        # Without the constructor, which would create a missing file and upgrade an old one.
        store = cls.__new__(cls)
        store._open(path, open_for_reading)  # noqa: SLF001 - a constructor of this class
        return store

    @property
    def location(self) -> str:
        """Path of the file."""
        return str(self.path)

    def _open(self, path: Path, connect: Callable[[Path], sqlite3.Connection]) -> None:
        self.path = path
        # Absolute, because an agent in this process may change the working directory.
        self._file = str(path.absolute())
        self._connection: sqlite3.Connection | None = connect(path)
        self._inode = _inode(self._file)
        self._lock = threading.Lock()
        self._changed = Wakeups()
        # Keys of the tools that this process has stored, which saves a write per LLM call.
        self._stored_tools: set[tuple[str, bytes]] = set()

    async def create_run(self, run: RunRow) -> None:
        """Add a run; raise `StoreError` if its name exists."""
        async with self._transaction(f"add run '{run.id}'") as db:
            if db.execute("SELECT 1 FROM runs WHERE id = ?", (run.id,)).fetchone():
                raise StoreError(f"{self.path}: run '{run.id}' exists already; choose another name")
            db.execute(rows.RUNS.insert, rows.run_row(run))

    async def update_run(self, run_id: str, *, status: str, error: str = "") -> None:
        """Set the run's status."""
        async with self._transaction(f"update run '{run_id}'") as db:
            self._check_run(db, run_id)
            db.execute("UPDATE runs SET status = ?, error = ? WHERE id = ?", (status, rows.text(error), run_id))

    async def runs(self) -> list[RunRow]:
        """Return all runs, oldest first."""
        return await self._restored("list runs", rows.run_from, rows.RUNS.select + " ORDER BY created_at, rowid")

    async def add_tasks(self, run_id: str, tasks: Sequence[Task], *, task_set: str = "train") -> None:
        """Keep the tasks of one of a run's task sets; leave a task that is already there unchanged."""
        values = [rows.task_row(run_id, task, task_set) for task in tasks]
        async with self._transaction(f"add tasks of run '{run_id}'") as db:
            self._check_run(db, run_id)
            db.executemany(rows.TASKS.insert + " ON CONFLICT DO NOTHING", values)

    async def tasks(self, run_id: str, *, task_set: str | None = None) -> list[Task]:
        """Return the task rows of a run, or of one of its task sets, in the order in which they were added."""
        query = rows.TASKS.select + " WHERE run_id = ?" + ("" if task_set is None else " AND task_set = ?")
        names = [run_id] if task_set is None else [run_id, task_set]
        return await self._restored("list tasks", rows.task_from, query + " ORDER BY rowid", *names)

    async def add_group(
        self, run_id: str, group_id: str, task_id: str, *, index: int, size: int, version: int, is_eval: bool = False
    ) -> None:
        """Announce a group before its first record."""
        values = (run_id, group_id, task_id, index, size, version, is_eval, "open")
        async with self._transaction(f"add group {group_id} to run '{run_id}'") as db:
            db.execute(rows.GROUPS.insert, values)

    async def add_record(self, record: Record) -> None:
        """Announce a record with the outcome `running`."""
        async with self._transaction(
            f"add record {record.id} to group {record.group_id} of run '{record.run_id}'"
        ) as db:
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

    async def sessions(self, run_id: str) -> list[SessionRow]:
        """Return the sessions of a run in the order in which they were opened."""
        query = rows.SESSIONS.select + " WHERE run_id = ? ORDER BY opened_at, rowid"
        return await self._restored(f"list sessions of run '{run_id}'", rows.session_from, query, run_id)

    async def finish_record(self, record: Record) -> bool:
        """Move a running record to its final outcome; return False and change nothing if it was not running."""
        if record.outcome is Outcome.RUNNING:
            raise ValueError(f"record {record.id}: expected a final outcome, got 'running'")
        _, _, _, _, _, _, _, outcome, reason, detail, *scores, _, finished_at, _ = rows.record_row(record)
        details = rows.to_json(dict(record.score_details), f"the score of record {record.id}")
        async with self._transaction(f"finish record {record.id}") as db:
            changed = db.execute(
                "UPDATE records SET outcome = ?, reason = ?, detail = ?, reward = ?, rewards = ?, score = ?, "
                "score_parts = ?, finished_at = ?, score_details = ? WHERE id = ? AND outcome = 'running'",
                (outcome, reason, detail, *scores, finished_at, details, record.id),
            ).rowcount
            # No change is normal for a record that a resumed run has cancelled, but not for an unknown id.
            if not changed and not db.execute("SELECT 1 FROM records WHERE id = ?", (record.id,)).fetchone():
                raise StoreError(f"{self.path}: no record {record.id} to finish; it was never announced")
        return changed == 1

    async def finish_group(self, run_id: str, group_id: str, *, usable: bool) -> None:
        """Mark an open group, all of whose slots are terminal, as ready if it is usable, else as dropped."""
        async with self._transaction(f"finish group {group_id}") as db:
            state = "ready" if usable else "dropped"
            key = (run_id, group_id)
            changed = db.execute(
                "UPDATE groups SET state = ? WHERE run_id = ? AND id = ? AND state = 'open'", (state, *key)
            ).rowcount
            if not changed and not db.execute("SELECT 1 FROM groups WHERE run_id = ? AND id = ?", key).fetchone():
                raise StoreError(
                    f"{self.path}: no group {group_id} in run '{run_id}' to finish; it was never announced"
                )
        self._changed.wake()

    async def take_groups(self, run_id: str, count: int, *, ahead: OvertakeLimits | None = None) -> list[Group]:
        """Wait until the next `count` training groups are ready; mark them taken and return them."""
        with self._changed.listen() as changed:
            while (taken := await self._take(run_id, count, ahead)) is None:
                # The timeout is for samplers in other processes: they cannot set this event.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), RECHECK_S)
                # Cleared before the next look at the table, so that a change during that look is not lost.
                changed.clear()
        # Outside the transaction: the groups are this caller's now, and their records no longer change.
        return [
            Group(
                id=group.id,
                run_id=run_id,
                task_id=group.task_id,
                index=group.index,
                version=group.version,
                episodes=await self._scored_episodes(run_id, group.id),
            )
            for group in taken
        ]

    async def _take(self, run_id: str, count: int, ahead: OvertakeLimits | None) -> list[WaitingGroup] | None:
        """Mark the next groups of the queue as taken and return them; None while the caller must wait."""
        async with self._transaction(f"take groups of run '{run_id}'") as db:
            closed = self._check_run(db, run_id)
            waiting = [WaitingGroup(*row) for row in db.execute(QUEUE, (run_id,))]
            # The query follows an index on the submission index. This sort is stable, so the order is by version first
            # and by index within a version.
            queue = sorted(waiting, key=lambda group: group.version)
            taken = next_groups(queue, count, ahead)
            # After the end of sampling no open group can become ready, so there is nothing to wait for.
            if closed and taken is None:
                taken = [group for group in queue if group.ready][:count]
            if taken is not None:
                db.executemany(
                    "UPDATE groups SET state = 'taken' WHERE run_id = ? AND id = ?",
                    [(run_id, group.id) for group in taken],
                )
        return taken

    async def close_sampling(self, run_id: str) -> None:
        """Announce that no more groups will come; `take_groups` wakes up and stops waiting for open groups."""
        async with self._transaction(f"close sampling of run '{run_id}'") as db:
            self._check_run(db, run_id)
            db.execute("UPDATE runs SET sampling_closed = 1 WHERE id = ?", (run_id,))
        self._changed.wake()

    async def add_step(self, step: StepRow) -> None:
        """Record an optimizer step and its consumption; raise `StoreError` if a step with its number is not voided."""
        async with self._transaction(f"add step {step.step} of run '{step.run_id}'") as db:
            db.execute(rows.STEPS.insert, rows.step_row(step))

    async def void_after(self, run_id: str, step: int) -> int:
        """Void the steps after `step`, so that the run can continue from there; return the number of voided steps."""
        async with self._transaction(f"void the steps of run '{run_id}' after {step}") as db:
            self._check_run(db, run_id)
            voided = db.execute(
                "UPDATE steps SET voided = 1 WHERE run_id = ? AND step > ? AND voided = 0", (run_id, step)
            ).rowcount
            consumed = db.execute("SELECT groups FROM steps WHERE run_id = ? AND voided = 0", (run_id,)).fetchall()
            kept = {group for (groups,) in consumed for group in rows.names_from(groups)}
            # All other groups, also taken ones whose step was voided or never recorded, are sampled again.
            others = db.execute(
                "SELECT id FROM groups WHERE run_id = ? AND state IN ('open', 'ready', 'taken')", (run_id,)
            ).fetchall()
            db.executemany(
                "UPDATE groups SET state = 'aside' WHERE run_id = ? AND id = ?",
                [(run_id, group_id) for (group_id,) in others if group_id not in kept],
            )
            db.execute(
                "UPDATE sessions SET state = 'closed' WHERE run_id = ? AND record_id IN "
                "(SELECT id FROM records WHERE run_id = ? AND outcome = 'running')",
                (run_id, run_id),
            )
            db.execute(
                "UPDATE records SET outcome = 'cancelled', reason = 'resumed', "
                "detail = 'the process that ran it ended first' WHERE run_id = ? AND outcome = 'running'",
                (run_id,),
            )
            db.execute("UPDATE runs SET sampling_closed = 0 WHERE id = ?", (run_id,))
        return voided

    async def resume_point(self, run_id: str, step: int) -> ResumePoint:
        """Return the position from which sampling and versions continue; only live steps up to `step` count."""
        query = """
            SELECT max(groups.idx) FROM steps, json_each(steps.groups) AS consumed, groups
            WHERE steps.run_id = ? AND steps.voided = 0 AND steps.step <= ?
            AND groups.run_id = steps.run_id AND groups.id = consumed.value
        """
        what = f"find where run '{run_id}' goes on"
        ((highest,),) = await self._select(what, query, run_id, step)
        next_index = 0 if highest is None else highest + 1
        return ResumePoint(
            step=step,
            next_index=next_index,
            last_version=await self.last_version(run_id),
            left=dict(await self._select(what, LEFT, run_id, step, next_index)),
        )

    async def steps(self, run_id: str) -> list[StepRow]:
        """Return the steps in the order in which they were made, including voided steps."""
        query = rows.STEPS.select + " WHERE run_id = ? ORDER BY position"
        return await self._restored("list steps", rows.step_from, query, run_id)

    async def add_version(self, run_id: str, version: int, *, step: int) -> None:
        """Record a weight publication; raise `StoreError` unless `version` exceeds all earlier ones of the run."""
        async with self._transaction(f"add version {version} of run '{run_id}'") as db:
            (last,) = db.execute("SELECT max(version) FROM versions WHERE run_id = ?", (run_id,)).fetchone()
            if last is not None and version <= last:
                raise StoreError(
                    f"{self.path}: run '{run_id}' cannot publish version {version} after version {last}; "
                    f"versions only rise; expected at least {last + 1}"
                )
            db.execute(rows.VERSIONS.insert, (run_id, version, step, time.time()))

    async def last_version(self, run_id: str) -> int:
        """Return the highest version ever published in the run, -1 if none."""
        query = "SELECT max(version) FROM versions WHERE run_id = ?"
        ((last,),) = await self._select("find the last version", query, run_id)
        return -1 if last is None else int(last)

    async def records(
        self, run_id: str, *, task_id: str | None = None, is_eval: bool | None = None, limit: int | None = None
    ) -> list[Record]:
        """Return the first `limit` records of a run in the order of their start."""
        query = rows.RECORDS.select + " WHERE run_id = ?"
        values: list[object] = [run_id]
        for column, value in (("task_id", task_id), ("is_eval", is_eval)):
            if value is not None:
                query += f" AND {column} = ?"
                values.append(value)
        query += " ORDER BY started_at, rowid LIMIT ?"
        most = -1 if limit is None else limit
        return await self._restored("list records", rows.record_from, query, *values, most)

    async def episode(self, record_id: str) -> Episode | None:
        """Return a record, by id or unique id prefix, with its interactions; `StoreError` if several ids match."""
        # A range instead of LIKE: it uses the index of the primary key, and `_` and `%` need no escape.
        query = rows.RECORDS.select + " WHERE id >= ? AND id < ? ORDER BY id LIMIT 3"
        what = f"find record {record_id}"
        records = await self._restored(what, rows.record_from, query, record_id, record_id + chr(0x10FFFF))
        if not records:
            return None
        if len(records) > 1 and records[0].id != record_id:
            names = ", ".join(record.id for record in records)
            raise StoreError(f"{self.path}: several records start with '{record_id}' ({names}, …); give more of the id")
        query = "SELECT score_details FROM records WHERE id = ?"
        (details,) = await self._restored(what, lambda row: json.loads(row[0]), query, records[0].id)
        record = attrs.evolve(records[0], score_details=details)
        return (await self._episodes(record.run_id, [record]))[0]

    async def usage(self, run_id: str) -> Mapping[str, RecordUsage]:
        """Return the LLM calls and tokens so far by record id; records without a call are left out."""
        # Token ids are stored in 4 bytes each, so the tokens are counted without reading them.
        query = """
            SELECT records.id, count(*), sum(length(prompt_ids)) / 4, sum(length(output_ids)) / 4
            FROM records JOIN interactions ON record_id = records.id WHERE records.run_id = ? GROUP BY records.id
        """
        return {
            record_id: RecordUsage(calls=calls, prompt_tokens=prompt, output_tokens=output)
            for record_id, calls, prompt, output in await self._select("count tokens", query, run_id)
        }

    async def last_outputs(self, run_id: str) -> Mapping[str, Message]:
        """Return the message sampled by each record's last LLM call, by record id; records without a call are left out.

        SQLite takes `output` from the row that holds `max(seq)`; other databases would need a subquery.
        """
        query = """
            SELECT records.id, output, max(seq)
            FROM records JOIN interactions ON record_id = records.id WHERE records.run_id = ? GROUP BY records.id
        """
        found = await self._select("find last replies", query, run_id)
        return {record_id: json.loads(output) for record_id, output, _ in found}

    async def flush(self) -> None:
        """Return once everything that was written so far survives a power cut."""
        await _patiently(self._flushed)

    def _flushed(self) -> None:
        with self._writing("flush") as db:
            # With FULL a commit ends with an fsync of the whole log, which covers all earlier commits as well.
            db.execute("PRAGMA synchronous = FULL")
            try:
                db.execute("BEGIN IMMEDIATE")
                # SQLite skips the sync of an empty transaction, so write something that changes nothing.
                db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                db.execute("PRAGMA synchronous = NORMAL")
            # Move the log into the database, as far as no reader needs it: a copy of the file alone is then complete.
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    async def close(self) -> None:
        """Flush and close the file; further calls do nothing."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
        self._changed.wake()

    async def _scored_episodes(self, run_id: str, group_id: str) -> tuple[Episode, ...]:
        query = rows.RECORDS.select + " WHERE run_id = ? AND group_id = ? AND outcome = 'scored'"
        query += " ORDER BY sample_index, attempt"
        what = f"read group {group_id}"
        return await self._episodes(run_id, await self._restored(what, rows.record_from, query, run_id, group_id))

    async def _episodes(self, run_id: str, records: Sequence[Record]) -> tuple[Episode, ...]:
        """Read the interactions of the records and, once for all of them, the tools that they share."""
        query = rows.INTERACTIONS.select + " WHERE record_id = ? ORDER BY seq"
        found = [await self._select(f"read record {record.id}", query, record.id) for record in records]
        tools: dict[bytes | None, rows.Tools] = {None: ()}
        for key in {row[rows.TOOLS] for interactions in found for row in interactions} - {None}:
            query = "SELECT value FROM tools WHERE run_id = ? AND hash = ?"
            (tools[key],) = await self._restored("read tools", lambda row: rows.tools_from(row[0]), query, run_id, key)
        with self._restoring("read interactions"):
            return tuple(
                Episode(record=record, interactions=tuple(rows.interaction_from(row, tools) for row in interactions))
                for record, interactions in zip(records, found, strict=True)
            )

    async def _restored(
        self, what: str, restore: Callable[[tuple[Any, ...]], _T], query: str, *values: object
    ) -> list[_T]:
        """Run a query and convert its rows to values with `restore`."""
        found = await self._select(what, query, *values)
        with self._restoring(what):
            return [restore(row) for row in found]

    @contextlib.contextmanager
    def _restoring(self, what: str) -> Iterator[None]:
        """Turn the errors of converting a row, which this store cannot have written so, into `StoreError`."""
        try:
            yield
        except (ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
            raise StoreError(
                f"{self.path}: cannot {what}: a row is damaged ({type(error).__name__}: {error}); fix: continue from "
                "a copy of the file, or start a new run"
            ) from error

    def _check_run(self, db: sqlite3.Connection, run_id: str) -> bool:
        """Return whether sampling is closed; raise `StoreError` if there is no such run."""
        row = db.execute("SELECT sampling_closed FROM runs WHERE id = ?", (run_id,)).fetchone()
        if row is None:
            raise StoreError(f"{self.path}: there is no run '{run_id}' in this file")
        return bool(row[0])

    async def _select(self, what: str, query: str, *values: object) -> list[tuple[Any, ...]]:
        return await _patiently(lambda: self._selected(what, query, values))

    def _selected(self, what: str, query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        with self._exclusive(what) as db:
            return db.execute(query, values).fetchall()

    async def _write(self, what: str, statement: str, values: Sequence[object]) -> None:
        """Execute a single statement, which needs no transaction."""
        await _patiently(lambda: self._written(what, statement, values))

    def _written(self, what: str, statement: str, values: Sequence[object]) -> None:
        with self._writing(what) as db:
            db.execute(statement, values)

    @contextlib.asynccontextmanager
    async def _transaction(self, what: str) -> AsyncIterator[sqlite3.Connection]:
        """Commit all writes of the block, or none of them if the block raises.

        The block must not await anything: it holds the process's only connection.
        """
        with contextlib.ExitStack() as held:
            db = await _patiently(lambda: self._begin(what, held))
            try:
                yield db
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def _begin(self, what: str, held: contextlib.ExitStack) -> sqlite3.Connection:
        """Begin a transaction; closing `held` ends the exclusive use of the connection."""
        # If BEGIN meets a lock, `begun` releases the connection, and the caller can try again.
        with contextlib.ExitStack() as begun:
            db = begun.enter_context(self._writing(what))
            db.execute("BEGIN IMMEDIATE")
            held.push(begun.pop_all())
            return db

    @contextlib.contextmanager
    def _writing(self, what: str) -> Iterator[sqlite3.Connection]:
        """Yield the connection for a write; raise `StoreError` if the file is no longer at its path."""
        with self._exclusive(what) as db:
            # SQLite would go on writing into the unlinked file, and all of it would be lost at the end.
            if _inode(self._file) != self._inode:
                raise StoreError(f"{self.path}: cannot {what}: the file was moved or removed while in use; put it back")
            yield db

    @contextlib.contextmanager
    def _exclusive(self, what: str) -> Iterator[sqlite3.Connection]:
        """Yield the connection to one thread at a time; turn SQLite's errors into `StoreError`."""
        if not self._lock.acquire(timeout=_TURN_S):
            raise _InUseError
        try:
            if self._connection is None:
                raise StoreError(f"{self.path}: cannot {what}: the store is closed")
            yield self._connection
        except sqlite3.Error as error:
            raise store_error(self.path, what, error) from error
        except UnicodeEncodeError as error:
            message = f"{self.path}: cannot {what}: {error}; expected text that UTF-8 can encode"
            raise UnstorableError(message) from error
        finally:
            self._lock.release()


class _InUseError(Exception):
    """Another thread of this process uses the connection."""


async def _patiently(operation: Callable[[], _T]) -> _T:
    """Call `operation` until it meets no lock, with pauses in which the event loop runs other tasks.

    A lock of another process makes this fail after `BUSY_TIMEOUT_S`; a lock of another thread never does.
    """
    pause_s, waited_s = _FIRST_PAUSE_S, 0.0
    while True:
        try:
            return operation()
        except BusyError:
            if waited_s >= sqlite_file.BUSY_TIMEOUT_S:
                raise
            waited_s += pause_s
        except _InUseError:
            pass
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)


def _inode(file: str) -> tuple[int, int] | None:
    """Return the identity of the file at this path, which a replaced file does not share; None without a file."""
    try:
        found = os.stat(file)  # noqa: PTH116 - called for every LLM call; Path.stat takes twice as long
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
