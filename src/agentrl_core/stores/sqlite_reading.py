"""Reading half of a SQLite store, which needs no write lock."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs

from agentrl_core.api.run_rows import (
    GroupRow,
    RecordUsage,
    RunControl,
    RunRow,
    SealRow,
    SessionRow,
    StepRow,
    VersionRow,
)
from agentrl_core.errors import StoreError
from agentrl_core.stores import sqlite_rows as rows
from agentrl_core.stores.sqlite_connection import SQLiteConnection
from agentrl_core.stores.sqlite_tool_rows import TOOL_CALLS, tool_call_from
from agentrl_core.types import Episode, Record, Task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.api.members import Member
    from agentrl_core.types import Message


class SQLiteReading(SQLiteConnection):
    """A `RunReader` of one SQLite file."""

    async def runs(self) -> list[RunRow]:
        """Return all runs, oldest first."""
        return await self._restored("list runs", rows.run_from, rows.RUNS.select + " ORDER BY created_at, rowid")

    async def tasks(self, run_id: str, *, task_set: str | None = None, ids: Sequence[str] | None = None) -> list[Task]:
        """Return tasks of a run, of one of its task sets, or with certain ids, in the order of their addition."""
        query, values = rows.TASKS.select + " WHERE run_id = ?", [run_id]
        if task_set is not None:
            query += " AND task_set = ?"
            values.append(task_set)
        if ids is not None:
            query += " AND id IN (SELECT value FROM json_each(?))"
            values.append(json.dumps(list(ids)))
        return await self._restored("list tasks", rows.task_from, query + " ORDER BY rowid", *values)

    async def sessions(self, run_id: str) -> list[SessionRow]:
        """Return the sessions of a run in the order in which they were opened."""
        query = rows.SESSIONS.select + " WHERE run_id = ? ORDER BY opened_at, rowid"
        return await self._restored(f"list sessions of run '{run_id}'", rows.session_from, query, run_id)

    async def steps(self, run_id: str) -> list[StepRow]:
        """Return the steps in the order in which they were made, including voided steps."""
        query = rows.STEPS.select + " WHERE run_id = ? ORDER BY position"
        return await self._restored("list steps", rows.step_from, query, run_id)

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
        """Return a record, by id or unique id prefix, with all of its calls; `StoreError` if several ids match."""
        # A range instead of LIKE: it uses the index of the primary key, and `_` and `%` need no escape.
        query = rows.RECORDS.select + " WHERE id >= ? AND id < ? ORDER BY id LIMIT 3"
        what = f"find record {record_id}"
        records = await self._restored(what, rows.record_from, query, record_id, record_id + chr(0x10FFFF))
        if not records:
            return None
        if len(records) > 1 and records[0].id != record_id:
            names = ", ".join(record.id for record in records)
            raise StoreError(f"{self.path}: several records start with '{record_id}' ({names}, …); give more of the id")
        return await self._whole(records[0])

    async def episodes(self, record_ids: Sequence[str]) -> list[Episode]:
        """Return records with all of their calls, in the order of their ids."""
        query = rows.RECORDS.select + " WHERE id IN (SELECT value FROM json_each(?))"  # noqa: S608 - constants
        found = await self._restored("find records", rows.record_from, query, json.dumps(list(record_ids)))
        by_id = {record.id: record for record in found}
        return [await self._whole(by_id[name]) for name in record_ids if name in by_id]

    async def _whole(self, record: Record) -> Episode:
        """Read what a list of records leaves out."""
        query = "SELECT score_details FROM records WHERE id = ?"
        what = f"find record {record.id}"
        (details,) = await self._restored(what, lambda row: json.loads(row[0]), query, record.id)
        (found,) = await self._episodes(record.run_id, [attrs.evolve(record, score_details=details)])
        query = TOOL_CALLS.select + " WHERE record_id = ? ORDER BY seq"
        calls = await self._restored("read tool calls", tool_call_from, query, record.id)
        return attrs.evolve(found, tool_calls=tuple(calls))

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

    async def members(self, run_id: str, *, live: bool = False) -> list[Member]:
        """Return the members of a run, all or the live ones, in the order in which they joined."""
        query = rows.MEMBERS.select + " WHERE run_id = ?" + (" AND state = 'live'" if live else "") + " ORDER BY rowid"
        return await self._restored(f"list members of run '{run_id}'", rows.member_from, query, run_id)

    async def versions(self, run_id: str, *, after: int = -1) -> list[VersionRow]:
        """Return the publications of versions above `after`, by version."""
        query = rows.VERSIONS.select + " WHERE run_id = ? AND version > ? ORDER BY version"
        return await self._restored("list versions", rows.version_from, query, run_id, after)

    async def seals(self, run_id: str, *, newest: int | None = None) -> list[SealRow]:
        """Return the links of the run's audit chain by number, or only the `newest` ones."""
        query = rows.SEALS.select + " WHERE run_id = ? ORDER BY number DESC LIMIT ?"
        limit = -1 if newest is None else newest
        return (await self._restored("list seals", rows.seal_from, query, run_id, limit))[::-1]

    async def num_sealed(self, run_id: str) -> int:
        """Return the number of records that `add_seal` has marked."""
        query = "SELECT count(*) FROM records WHERE run_id = ? AND sealed_calls IS NOT NULL"
        ((count,),) = await self._select("count sealed records", query, run_id)
        return int(count)

    async def groups(self, run_id: str) -> list[GroupRow]:
        """Return the groups of a run in the order in which they were added."""
        query = rows.GROUPS.select + " WHERE run_id = ? ORDER BY rowid"
        return await self._restored(f"list groups of run '{run_id}'", rows.group_from, query, run_id)

    async def control(self, run_id: str) -> RunControl:
        """Return what people and the trainer want of the run's members."""
        found = await self._restored(f"read the control of run '{run_id}'", rows.control_from, rows.CONTROL, run_id)
        if not found:
            raise self._unknown_run(run_id)
        return found[0]

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
            for value in await self._restored("read tools", lambda row: rows.tools_from(row[0]), query, run_id, key):
                tools[key] = value
        with self._restoring("read interactions"):
            return tuple(
                Episode(record=record, interactions=tuple(rows.interaction_from(row, tools) for row in interactions))
                for record, interactions in zip(records, found, strict=True)
            )
