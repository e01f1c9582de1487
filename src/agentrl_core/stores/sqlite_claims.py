"""Claims of groups in a SQLite store: which groups a member runs next, and how they end."""

from __future__ import annotations

import json
import sqlite3
import uuid
from typing import TYPE_CHECKING

import attrs

from agentrl_core.api.claims import GroupClaim
from agentrl_core.errors import ClaimLostError, StoreError
from agentrl_core.stores import sqlite_rows as rows
from agentrl_core.stores.sqlite_reading import SQLiteReading
from agentrl_core.stores.sqlite_resuming import WHATEVER_TRIES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentrl_core.api.claims import Admission
    from agentrl_core.api.run_rows import GroupRow
    from agentrl_core.types import Record

PENDING = """
    SELECT count(*) FROM groups WHERE run_id = ? AND state IN ('reserved', 'open', 'ready', 'taken') AND is_eval = 0
"""
"""Count the training groups of a run that are not trained yet."""

STEPS = "SELECT coalesce(max(step), 0) FROM steps WHERE run_id = ? AND voided = 0"
"""Find the number of live steps."""

_FREE = rows.GROUPS.select + " WHERE run_id = ? AND state = 'open' AND member_id = ''"
FREE_EVALUATIONS = f"{_FREE} AND is_eval = 1 ORDER BY rowid"
FREE_GROUPS = f"{_FREE} AND is_eval = 0 ORDER BY idx"
"""Select open groups that no member has."""


class SQLiteClaims(SQLiteReading):
    """Claims of training and evaluation groups."""

    async def claim_groups(
        self,
        run_id: str,
        member_id: str,
        count: int,
        *,
        admission: Admission,
        size: int,
        version: int,
        task_at: Callable[[int], str] | None,
    ) -> list[GroupClaim]:
        """Claim up to `count` groups for a live member, and return them; never waits."""
        async with self._transaction(f"claim groups of run '{run_id}'") as db:
            self._check_run(db, run_id)
            if _run_of(db, member_id, run_id=run_id) is None:
                raise ClaimLostError(
                    f"{self.path}: member {member_id} does not take part in run '{run_id}' any more; it must join again"
                )
            most = admission.max_takeovers
            claims, dead = _take_over(db, FREE_EVALUATIONS, run_id, member_id, count, max_takeovers=most)
            query = "SELECT admitted_steps, replaced FROM runs WHERE id = ? AND NOT sampling_closed"
            admitted_steps, replaced = db.execute(query, (run_id,)).fetchone() or (-1, 0)
            if admitted_steps >= 0:
                left = count - len(claims)
                abandoned, died = _take_over(db, FREE_GROUPS, run_id, member_id, left, max_takeovers=most)
                claims, dead = claims + abandoned, dead + died
                (pending,), (steps,) = (db.execute(query, (run_id,)).fetchone() for query in (PENDING, STEPS))
                room = admission.groups(
                    admitted_steps=admitted_steps, trained_steps=steps, pending=pending, replaced=replaced
                )
                room = max(0, min(room, count - len(claims)))
                new = [
                    GroupClaim(
                        group_id=_new_id(),
                        member_id=member_id,
                        index=index,
                        task_id="" if task_at is None else task_at(index),
                        size=size,
                        version=version,
                        tries=tries,
                    )
                    for index, tries in (
                        [(-1, 0)] * room
                        if task_at is None
                        else _next_turns(db, run_id, room, requeue=admission.requeue)
                    )
                ]
                db.executemany(rows.GROUPS.insert, [rows.claim_row(run_id, claim) for claim in new])
                claims += new
        if dead:
            # They no longer hold back the groups behind them.
            self._changed.wake()
        return claims

    async def begin_group(self, claim: GroupClaim, task_id: str) -> GroupClaim:
        """Give a reserved group its task and the next position, and return the claim with both."""
        async with self._transaction(f"begin group {claim.group_id}") as db:
            run_id = self._claimed_run(db, claim, "reserved")
            (index,) = _next_indices(db, run_id, 1)
            db.execute(
                "UPDATE groups SET state = 'open', task_id = ?, idx = ? WHERE run_id = ? AND id = ?",
                (task_id, index, run_id, claim.group_id),
            )
        return attrs.evolve(claim, task_id=task_id, index=index)

    async def release_group(self, claim: GroupClaim) -> None:
        """Give up a claim without an end of the group, whose running records have ended; the next member gets it."""
        async with self._transaction(f"release group {claim.group_id}") as db:
            run_id = _run_of(db, claim.member_id)
            key = "WHERE run_id = ? AND id = ? AND member_id = ?"
            values = (run_id, claim.group_id, claim.member_id)
            db.execute(f"DELETE FROM groups {key} AND state = 'reserved'", values)  # noqa: S608 - a constant
            db.execute(f"UPDATE groups SET member_id = '' {key}", values)  # noqa: S608 - a constant
        self._changed.wake()

    async def finish_group(self, claim: GroupClaim, *, usable: bool, requeue: int = 0) -> bool:
        """Mark a claimed group, all of whose slots are terminal, as ready if it is usable, else as dropped."""
        async with self._transaction(f"finish group {claim.group_id}") as db:
            run_id = self._claimed_run(db, claim, "open")
            again = not usable and not claim.is_eval and claim.tries < requeue
            db.execute(
                "UPDATE groups SET state = ?, member_id = '' WHERE run_id = ? AND id = ?",
                ("ready" if usable else "dropped", run_id, claim.group_id),
            )
            if again:
                db.execute("INSERT INTO turns VALUES (?, ?, ?, 0)", (run_id, claim.index, claim.tries + 1))
        self._changed.wake()
        return again

    async def requeue_group(self, run_id: str, group_id: str) -> bool:
        """Let the position of a dropped or dead training group be claimed once more from now on, whatever its tries."""
        async with self._transaction(f"requeue group {group_id} of run '{run_id}'") as db:
            query = rows.GROUPS.select + " WHERE run_id = ? AND id = ?"
            row = db.execute(query, (run_id, group_id)).fetchone()
            if row is None:
                raise StoreError(f"{self.path}: there is no group {group_id} in run '{run_id}'")
            group = rows.group_from(row)
            later = """
                SELECT 1 FROM groups WHERE run_id = ?1 AND idx = ?2 AND NOT is_eval AND state <> 'aside'
                AND rowid > (SELECT rowid FROM groups WHERE run_id = ?1 AND id = ?3)
            """
            if (
                group.is_eval
                or group.state not in ("dropped", "dead")
                or db.execute(later, (run_id, group.index, group_id)).fetchone()
            ):
                return False
            done = db.execute(
                "INSERT INTO turns VALUES (?1, ?2, ?3, ?4) "
                "ON CONFLICT DO UPDATE SET released = ?4 WHERE released <> ?4",
                (run_id, group.index, group.tries + 1, WHATEVER_TRIES),
            ).rowcount
        self._changed.wake()
        return done == 1

    async def add_evaluation(
        self,
        run_id: str,
        task_set: str,
        task_ids: Sequence[str],
        *,
        version: int,
        claimable: bool = True,
        member_id: str = "",
    ) -> Sequence[str]:
        """Ask for one episode on each task; return the ids of the groups, in the order of `task_ids`."""
        names = [_new_id() for _ in task_ids]
        state = "open" if claimable else "aside"
        values = [
            (run_id, name, task_id, index, 1, version, True, task_set, state, "", 0, 0)
            for index, (name, task_id) in enumerate(zip(names, task_ids, strict=True))
        ]
        async with self._transaction(f"add an evaluation to run '{run_id}'") as db:
            self._check_run(db, run_id, member_id)
            db.executemany(rows.GROUPS.insert, values)
        self._changed.wake()
        return names

    async def await_groups(self, run_id: str, group_ids: Sequence[str]) -> list[Record | None]:
        """Wait until no group is open any more; return the last record of each, None for one without records."""
        names = json.dumps(list(group_ids))
        await self._until(lambda: self._ended(run_id, names))
        query = rows.RECORDS.select + " WHERE run_id = ? AND group_id IN (SELECT value FROM json_each(?))"  # noqa: S608 - constants
        query += " ORDER BY attempt, rowid"
        found = await self._restored(f"read groups of run '{run_id}'", rows.record_from, query, run_id, names)
        last = {record.group_id: record for record in found}
        return [last.get(name) for name in group_ids]

    async def _ended(self, run_id: str, names: str) -> bool | None:
        """Return True if none of the groups is open, or if sampling is closed, else None."""
        query = """
            SELECT sampling_closed OR NOT EXISTS (
                SELECT 1 FROM json_each(?2) JOIN groups ON groups.run_id = ?1 AND groups.id = value
                WHERE groups.state = 'open'
            ) FROM runs WHERE id = ?1
        """
        found = await self._select(f"look at groups of run '{run_id}'", query, run_id, names)
        if not found:
            raise self._unknown_run(run_id)
        return True if found[0][0] else None

    def _claimed_run(self, db: sqlite3.Connection, claim: GroupClaim, state: str) -> str:
        """Return the run of a claim; raise `ClaimLostError` unless its member has the group, in that state."""
        run_id = _run_of(db, claim.member_id)
        self._check_claim(db, run_id or "", claim.group_id, claim.member_id, state=state)
        return run_id or ""

    def _check_claim(
        self, db: sqlite3.Connection, run_id: str, group_id: str, member_id: str, *, state: str = "open"
    ) -> None:
        """Raise `ClaimLostError` unless the member has the group, in that state; a member that ended has none."""
        query = "SELECT 1 FROM groups WHERE run_id = ? AND id = ? AND member_id = ? AND state = ?"
        if not db.execute(query, (run_id, group_id, member_id, state)).fetchone():
            raise ClaimLostError(
                f"{self.path}: member {member_id} does not have group {group_id} any more; its work on the group is "
                "void, and another member samples it"
            )


def _new_id() -> str:
    return uuid.uuid4().hex[:16]


def _run_of(db: sqlite3.Connection, member_id: str, *, run_id: str | None = None) -> str | None:
    """Return the run of a live member; None if there is no such member, or not in `run_id`."""
    query = "SELECT run_id FROM members WHERE id = ? AND state = 'live' AND run_id = coalesce(?, run_id)"
    row = db.execute(query, (member_id, run_id)).fetchone()
    return None if row is None else str(row[0])


def _take_over(
    db: sqlite3.Connection, query: str, run_id: str, member_id: str, count: int, *, max_takeovers: int
) -> tuple[list[GroupClaim], int]:
    """Give the first `count` groups of a query to a member; return the claims, and the number of groups that died."""
    found: list[GroupRow] = []
    dead: list[GroupRow] = []
    if count > 0:
        # Read row by row: an evaluation may have far more groups than one member asks for.
        for row in db.execute(query, (run_id,)):
            group = rows.group_from(row)
            (dead if group.takeovers > max_takeovers else found).append(group)
            if len(found) == count:
                break
    key = "WHERE run_id = ? AND id = ?"
    db.executemany(f"UPDATE groups SET state = 'dead' {key}", [(run_id, group.id) for group in dead])  # noqa: S608 - a constant
    db.executemany(
        f"UPDATE groups SET member_id = ? {key}",  # noqa: S608 - a constant
        [(member_id, run_id, group.id) for group in found],
    )
    query = "SELECT sample_index, id FROM records WHERE run_id = ? AND group_id = ? AND outcome = 'scored'"
    claims = [
        GroupClaim(
            group_id=group.id,
            member_id=member_id,
            index=group.index,
            task_id=group.task_id,
            size=group.size,
            version=group.version,
            tries=group.tries,
            takeovers=group.takeovers,
            is_eval=group.is_eval,
            task_set=group.task_set,
            scored=dict(db.execute(query, (run_id, group.id)).fetchall()),
        )
        for group in found
    ]
    return claims, len(dead)


def _next_turns(db: sqlite3.Connection, run_id: str, count: int, *, requeue: int) -> list[tuple[int, int]]:
    """Return the next positions with their tries: those to sample again that are released, then new ones."""
    query = """
        SELECT idx, tries FROM turns WHERE run_id = ? AND released AND (tries <= ? OR released = ?) ORDER BY idx LIMIT ?
    """
    again: list[tuple[int, int]] = db.execute(query, (run_id, requeue, WHATEVER_TRIES, count)).fetchall()
    db.executemany("DELETE FROM turns WHERE run_id = ? AND idx = ?", [(run_id, index) for index, _ in again])
    return again + [(index, 0) for index in _next_indices(db, run_id, count - len(again))]


def _next_indices(db: sqlite3.Connection, run_id: str, count: int) -> range:
    """Return the next `count` positions that were never sampled."""
    (end,) = db.execute(
        "UPDATE runs SET next_index = next_index + ? WHERE id = ? RETURNING next_index", (count, run_id)
    ).fetchone()
    return range(end - count, end)
