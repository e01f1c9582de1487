"""Audit side of a SQLite store: the records that wait for a seal, and the seals that are added."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs

from agentrl_core.api.run_rows import EndedRecord
from agentrl_core.errors import StoreError
from agentrl_core.stores import sqlite_rows as rows
from agentrl_core.stores.sqlite_reading import SQLiteReading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.api.run_rows import SealRow

_NEW = "outcome <> 'running' AND sealed_calls IS NULL"
_LATE = """
    sealed_calls < (SELECT count(*) FROM interactions WHERE record_id = records.id)
    + (SELECT count(*) FROM tool_calls WHERE record_id = records.id)
"""


class SQLiteSeals(SQLiteReading):
    """The part of a `Store` that a run's audit trail needs."""

    async def unsealed(self, run_id: str, *, limit: int, late: bool = False) -> list[EndedRecord]:
        """Return ended records that no seal names or, with `late`, that got another call after their seal."""
        what = f"find the unsealed records of run '{run_id}'"
        query = f"SELECT id FROM records WHERE run_id = ? AND {_LATE if late else _NEW} LIMIT ?"  # noqa: S608 - constants
        chosen = json.dumps([name for (name,) in await self._select(what, query, run_id, limit)])
        # What follows is of ended records, which no longer change; calls that come meanwhile are found as late ones.
        among = "IN (SELECT value FROM json_each(?))"
        names = rows.RECORDS.columns.count(",") + 1
        query = f"SELECT {rows.RECORDS.columns}, score_details FROM records WHERE id {among} ORDER BY rowid"  # noqa: S608
        found = await self._select(what, query, chosen)
        query = f"{rows.GROUPS.select} WHERE run_id = ? AND id {among}"
        group_ids = json.dumps(sorted({row[rows.GROUP_OF_RECORD] for row in found}))
        groups = {group.id: group for group in await self._restored(what, rows.group_from, query, run_id, group_ids)}
        calls, tool_calls = [
            await self._digests(what, table, among, chosen) for table in ("interactions", "tool_calls")
        ]
        with self._restoring(what):
            records = [
                attrs.evolve(rows.record_from(row[:names]), score_details=json.loads(row[names])) for row in found
            ]
            return [
                EndedRecord(
                    record=record,
                    group=groups[record.group_id],
                    calls=tuple(calls.get(record.id, ())),
                    tool_calls=tuple(tool_calls.get(record.id, ())),
                )
                for record in records
            ]

    async def _digests(self, what: str, table: str, among: str, chosen: str) -> dict[str, list[str]]:
        """Return the digests of records' calls of one kind by record id, each in order."""
        query = f"SELECT record_id, digest FROM {table} WHERE record_id {among} ORDER BY record_id, seq"  # noqa: S608
        found: dict[str, list[str]] = {}
        for record_id, digest in await self._select(what, query, chosen):
            found.setdefault(record_id, []).append(digest)
        return found

    async def add_seal(self, seal: SealRow, *, records: Mapping[str, int], member_id: str = "") -> None:
        """Append a link to the run's audit chain, and mark the records that it names."""
        async with self._transaction(f"add seal {seal.number} of run '{seal.run_id}'") as db:
            self._check_run(db, seal.run_id, member_id)
            key = (seal.run_id, seal.number)
            if db.execute("SELECT 1 FROM seals WHERE run_id = ? AND number = ?", key).fetchone():
                raise StoreError(
                    f"{self.path}: run '{seal.run_id}' has a seal {seal.number} already; another process trains the "
                    "same run: end it, and resume"
                )
            db.execute(rows.SEALS.insert, (*key, seal.body, seal.digest))
            db.executemany(
                "UPDATE records SET sealed_calls = ? WHERE id = ?", [(count, name) for name, count in records.items()]
            )
