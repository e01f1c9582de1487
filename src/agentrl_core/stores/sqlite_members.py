"""Members of a run in a SQLite store: heartbeats, the end of a member, and what people want of the members."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from typing import TYPE_CHECKING, Any, Literal

from agentrl_core.api.run_rows import RunControl
from agentrl_core.errors import MemberError, StoreError
from agentrl_core.stores import sqlite_rows as rows
from agentrl_core.stores.sqlite_connection import SQLiteConnection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.api.members import Member, MemberState

_DETAILS = {
    "left": "the process that ran it left the run first",
    "lost": "the process that ran it was declared lost: its heartbeat had stopped for longer than its lease",
}
"""Reason of a record that ended with its member -> detail."""


class SQLiteMembers(SQLiteConnection):
    """Membership, and the control of a run."""

    async def join(self, member: Member) -> None:
        """Add a live member of a run. Raises `MemberError`, with the other's name, for a second live trainer."""
        async with self._transaction(f"join run '{member.run_id}' as {member.name}") as db:
            self._check_run(db, member.run_id)
            if member.role == "train":
                query = rows.MEMBERS.select + " WHERE run_id = ? AND role = 'train' AND state = 'live'"
                for row in db.execute(query, (member.run_id,)):
                    other = rows.member_from(row)
                    raise MemberError(
                        f"{self.path}: run '{member.run_id}' has a trainer already: {other.name}; end that process, or "
                        f"wait {other.lease_s:g} s if it has died"
                    )
            db.execute(rows.MEMBERS.insert, rows.member_row(member))

    async def beat(self, member_id: str, report: Mapping[str, Any]) -> bool:
        """Count a heartbeat and replace the member's report; return False, and change nothing, if it is not live."""
        what = f"the report of member {member_id}"
        values = (rows.to_json(dict(report), what), member_id)
        async with self._transaction(f"store {what}") as db:
            statement = "UPDATE members SET beats = beats + 1, report = ? WHERE id = ? AND state = 'live'"
            return db.execute(statement, values).rowcount == 1

    async def leave(self, member_id: str) -> None:
        """End a live member in an orderly way: its claims are free, and its running records end as `cancelled`."""
        await self._end_member(member_id, "left")

    async def declare_lost(self, member_id: str, *, beats: int) -> bool:
        """End a live member whose heartbeats still are `beats` as `leave` does; return whether this call ended it."""
        return await self._end_member(member_id, "lost", beats=beats)

    async def _end_member(self, member_id: str, state: MemberState, *, beats: int | None = None) -> bool:
        async with self._transaction(f"end member {member_id}") as db:
            ended = db.execute(
                "UPDATE members SET state = ?1 WHERE id = ?2 AND state = 'live' AND beats = coalesce(?3, beats)",
                (state, member_id, beats),
            ).rowcount
            if ended:
                _free_groups(db, member_id, state)
        if ended:
            self._changed.wake()
        return ended == 1

    async def set_control(
        self,
        run_id: str,
        *,
        wanted: Literal["run", "pause", "stop"] | None = None,
        limits: Mapping[str, int | float | None] | None = None,
    ) -> RunControl:
        """Change what the run's members are to do; None leaves a value as it is, or removes one limit."""
        async with self._transaction(f"change the control of run '{run_id}'") as db:
            query = "SELECT admitted_steps, sampling_closed, wanted, limits FROM runs WHERE id = ?"
            row = db.execute(query, (run_id,)).fetchone()
            if row is None:
                raise self._unknown_run(run_id)
            before = rows.control_from(row)
            changed = {**before.limits, **(limits or {})}
            after = RunControl(
                admitted_steps=before.admitted_steps,
                closed=before.closed,
                wanted=wanted or before.wanted,
                limits={name: value for name, value in changed.items() if value is not None},
            )
            values = (after.wanted, rows.to_json(dict(after.limits), f"the limits of run '{run_id}'"), run_id)
            db.execute("UPDATE runs SET wanted = ?, limits = ? WHERE id = ?", values)
        self._changed.wake()
        return after

    async def changed(self, run_id: str, seen: int, *, timeout_s: float) -> int:
        """Wait until a claim, a group or the run's control may have changed since `seen`, and return a new `seen`."""
        with self._changed.listen() as changed:
            # Counted, not only awaited: a change between two calls is seen by the second one.
            if self._changed.count == seen:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), timeout_s)
        if self._connection is None:
            raise StoreError(f"{self.path}: cannot wait for changes of run '{run_id}': the store is closed")
        return self._changed.count


def cancel_running(db: sqlite3.Connection, run_id: str, member_id: str, *, reason: str, detail: str) -> None:
    """Cancel the running records of all groups that `member_id` has, and close their sessions; "" is no member."""
    query = """
        SELECT records.id FROM records JOIN groups ON groups.run_id = records.run_id AND groups.id = records.group_id
        WHERE records.run_id = ? AND records.outcome = 'running' AND groups.member_id = ?
    """
    running = db.execute(query, (run_id, member_id)).fetchall()
    db.executemany("UPDATE sessions SET state = 'closed' WHERE record_id = ?", running)
    db.executemany(
        "UPDATE records SET outcome = 'cancelled', reason = ?, detail = ? WHERE id = ?",
        [(reason, detail, record_id) for (record_id,) in running],
    )


def _free_groups(db: sqlite3.Connection, member_id: str, state: MemberState) -> None:
    """Take its groups from a member that has ended; the next member that asks gets them."""
    (run_id,) = db.execute("SELECT run_id FROM members WHERE id = ?", (member_id,)).fetchone()
    cancel_running(db, run_id, member_id, reason=state, detail=_DETAILS[state])
    # The second condition lets SQLite use the index of the groups that have a member.
    held = "WHERE member_id = ? AND member_id <> ''"
    db.execute(f"DELETE FROM groups {held} AND state = 'reserved'", (member_id,))  # noqa: S608 - a constant
    db.execute(f"UPDATE groups SET member_id = '', takeovers = takeovers + 1 {held}", (member_id,))  # noqa: S608 - a constant
