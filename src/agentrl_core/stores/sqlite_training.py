"""Training side of a SQLite store: the groups that a step takes, steps, versions, and where a run goes on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import attrs

from agentrl_core.api.group_queue import next_groups
from agentrl_core.api.run_rows import ResumePoint
from agentrl_core.errors import StoreError
from agentrl_core.stores import sqlite_rows as rows
from agentrl_core.stores.sqlite_reading import SQLiteReading
from agentrl_core.stores.sqlite_resuming import CONSUMED_INDEX, void_steps
from agentrl_core.types import Group

if TYPE_CHECKING:
    from agentrl_core.api.group_queue import OvertakeLimits
    from agentrl_core.api.run_rows import StepRow

QUEUE = """
    SELECT id, state, task_id, idx, version, tries, coalesce(
        (SELECT step FROM versions WHERE run_id = groups.run_id AND version <= groups.version AND NOT voided
         ORDER BY version DESC LIMIT 1),
        version
    ) FROM groups
    WHERE run_id = ? AND state IN ('open', 'ready') AND is_eval = 0
    ORDER BY idx
"""
"""Select the training groups of a run that wait to be taken, each with the step of its version."""


@attrs.frozen
class _WaitingGroup:
    """A row of `QUEUE`."""

    id: str
    state: str
    task_id: str
    index: int
    version: int
    tries: int
    step: int

    @property
    def ready(self) -> bool:
        """Whether the group may be taken."""
        return self.state == "ready"


class SQLiteTraining(SQLiteReading):
    """Consumption of groups, and what it admits."""

    async def take_groups(
        self, run_id: str, count: int, *, ahead: OvertakeLimits | None = None, member_id: str = ""
    ) -> list[Group]:
        """Wait until the next `count` training groups are ready; mark them taken and return them."""
        taken = await self._until(lambda: self._take(run_id, count, ahead, member_id))
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

    async def _take(
        self, run_id: str, count: int, ahead: OvertakeLimits | None, member_id: str
    ) -> list[_WaitingGroup] | None:
        """Mark the next groups of the queue as taken and return them; None while the caller must wait."""
        async with self._transaction(f"take groups of run '{run_id}'") as db:
            self._check_run(db, run_id, member_id)
            waiting = [_WaitingGroup(*row) for row in db.execute(QUEUE, (run_id,))]
            # The query follows an index on the position. This sort is stable, so the order is by step first and by
            # position within a step.
            queue = sorted(waiting, key=lambda group: group.step)
            taken = next_groups(queue, count, ahead)
            # After the end of sampling no open group can become ready, so there is nothing to wait for.
            (closed,) = db.execute("SELECT sampling_closed FROM runs WHERE id = ?", (run_id,)).fetchone()
            if closed and taken is None:
                taken = [group for group in queue if group.ready][:count]
            if taken is not None:
                db.executemany(
                    "UPDATE groups SET state = 'taken' WHERE run_id = ? AND id = ?",
                    [(run_id, group.id) for group in taken],
                )
        return taken

    async def close_sampling(self, run_id: str, *, member_id: str = "") -> None:
        """Announce that no more groups will come; `take_groups` wakes up and stops waiting for open groups."""
        async with self._transaction(f"close sampling of run '{run_id}'") as db:
            self._check_run(db, run_id, member_id)
            db.execute("UPDATE runs SET sampling_closed = 1 WHERE id = ?", (run_id,))
        self._changed.wake()

    async def admit(self, run_id: str, steps: int, *, member_id: str = "") -> None:
        """Let sampling go on as `Admission` allows after `steps` optimizer steps."""
        async with self._transaction(f"admit groups of run '{run_id}'") as db:
            self._check_run(db, run_id, member_id)
            db.execute("UPDATE runs SET admitted_steps = ? WHERE id = ?", (steps, run_id))
            db.execute("UPDATE turns SET released = 1 WHERE run_id = ? AND released = 0", (run_id,))
        self._changed.wake()

    async def replace_groups(self, run_id: str, count: int, *, member_id: str = "") -> None:
        """Admit `count` more groups for the next step, in place of groups that were taken and then filtered out."""
        async with self._transaction(f"admit more groups of run '{run_id}'") as db:
            self._check_run(db, run_id, member_id)
            db.execute("UPDATE runs SET replaced = replaced + ? WHERE id = ?", (count, run_id))
        self._changed.wake()

    async def add_step(self, step: StepRow, *, member_id: str = "") -> None:
        """Record an optimizer step, and mark its groups as trained; `replace_groups` counts from 0 again."""
        async with self._transaction(f"add step {step.step} of run '{step.run_id}'") as db:
            self._check_run(db, step.run_id, member_id)
            db.execute(rows.STEPS.insert, rows.step_row(step))
            for name in step.groups:
                key = (step.run_id, name)
                row = db.execute("SELECT state FROM groups WHERE run_id = ? AND id = ?", key).fetchone()
                if row is not None and row[0] in ("trained", "aside"):
                    raise StoreError(
                        f"{self.path}: cannot add step {step.step} of run '{step.run_id}': its group {name} is "
                        f"{row[0]} already, so another trainer has continued the run; end one of the two"
                    )
                db.execute("UPDATE groups SET state = 'trained' WHERE run_id = ? AND id = ?", key)
            db.execute("UPDATE runs SET replaced = 0 WHERE id = ?", (step.run_id,))
        self._changed.wake()

    async def void_after(self, run_id: str, step: int, *, member_id: str = "") -> int:
        """Void the steps after `step`, so that the run can continue from there; return the number of voided steps."""
        async with self._transaction(f"void the steps of run '{run_id}' after {step}") as db:
            self._check_run(db, run_id, member_id)
            voided = void_steps(db, run_id, step)
        self._changed.wake()
        return voided

    async def resume_point(self, run_id: str, step: int) -> ResumePoint:
        """Return the position from which sampling and versions continue; only live steps up to `step` count."""
        what = f"find where run '{run_id}' goes on"
        ((highest,),) = await self._select(what, CONSUMED_INDEX, run_id, step)
        next_index = 0 if highest is None else highest + 1
        return ResumePoint(step=step, next_index=next_index, last_version=await self.last_version(run_id))

    async def add_version(self, run_id: str, version: int, *, step: int, member_id: str = "") -> None:
        """Record a weight publication; raise `StoreError` unless `version` exceeds all earlier ones of the run."""
        async with self._transaction(f"add version {version} of run '{run_id}'") as db:
            self._check_run(db, run_id, member_id)
            (last,) = db.execute("SELECT max(version) FROM versions WHERE run_id = ?", (run_id,)).fetchone()
            if last is not None and version <= last:
                raise StoreError(
                    f"{self.path}: run '{run_id}' cannot publish version {version} after version {last}; "
                    f"versions only rise; expected at least {last + 1}"
                )
            db.execute(rows.VERSIONS.insert, (run_id, version, step, time.time(), False))
