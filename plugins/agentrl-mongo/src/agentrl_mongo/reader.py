"""Reading half of the store `mongo`: what the commands show of a run."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, TypeVar

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
from agentrl_core.types import Episode, Interaction, Record, Task, ToolCall
from agentrl_mongo import documents, queries, rows, sampling_state
from agentrl_mongo.address import Address, AddressError, database_of
from agentrl_mongo.connection import Connection
from agentrl_mongo.drivers import DriverName  # noqa: TC001 - the registry reads the constructor's types
from agentrl_mongo.tool_documents import tool_call_from

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from agentrl_core.api.members import Member
    from agentrl_core.types import Message
    from agentrl_mongo.documents import Document

_T = TypeVar("_T")

IN_LIST = {"score_details": 0}
"""Fields of records that lists leave out."""
PASSWORD_ENV = "MONGO_PASSWORD"  # noqa: S105 - the name of a variable
"""Default of the option `password_env`."""
_REPLIES = 3
"""Replies for which a call of a run may wait in vain within `patience_s`."""
_AT_ONCE = 200
"""Most records whose interactions are read by one query."""


class MongoReader:
    """A `RunReader` of a database of a MongoDB server, usable from any number of threads and event loops.

    Its client lives on a thread of its own. While the server is away, calls are repeated for `patience_s`, but for
    no more than a few seconds: a person waits for a command.
    """

    _longest_patience_s = 5.0

    def __init__(
        self,
        *,
        url: str,
        run: str = "",
        database: str = "",
        driver: DriverName = "motor",
        password_env: str = PASSWORD_ENV,
        patience_s: float = 60.0,
    ) -> None:
        address = Address.of(url, password=os.environ.get(password_env), password_env=password_env)
        name = database or address.database or (database_of(run) if run else "")
        if not name:
            raise AddressError("names no database, and there is no run; expected mongodb://HOST/DATABASE")
        self._connection = Connection(
            address,
            name,
            driver=driver,
            patience_s=min(max(0.0, patience_s), self._longest_patience_s),
            # A part of the patience, so that a call whose connection fell silent can be repeated.
            reply_s=patience_s / _REPLIES,
        )
        self._where = self._connection.where

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._where})"

    @property
    def location(self) -> str:
        """Address of the database without user and password."""
        return self._where

    async def runs(self) -> list[RunRow]:
        """Return all runs, oldest first."""
        return await self._found("list runs", "runs", queries.runs(), documents.run_from)

    async def tasks(self, run_id: str, *, task_set: str | None = None, ids: Sequence[str] | None = None) -> list[Task]:
        """Return tasks of a run, of one of its task sets, or with certain ids, in the order of their addition."""
        condition, order = queries.tasks(run_id, task_set)
        if ids is None:
            return await self._found("list tasks", "tasks", (condition, order), documents.task_from)
        found: list[Task] = []
        for some in _slices(list(ids)):
            named = {"id": {"$in": [documents.plain(name, f"task '{name}'") for name in some]}}
            found += await self._found("list tasks", "tasks", (condition | named, order), documents.task_from)
        return found

    async def sessions(self, run_id: str) -> list[SessionRow]:
        """Return the sessions of a run in the order in which they were opened."""
        what = f"list sessions of run '{run_id}'"
        return await self._found(what, "sessions", queries.sessions(run_id), documents.session_from)

    async def steps(self, run_id: str) -> list[StepRow]:
        """Return the steps in the order in which they were made, including voided steps."""
        return await self._found("list steps", "steps", queries.steps(run_id), documents.step_from)

    async def versions(self, run_id: str, *, after: int = -1) -> list[VersionRow]:
        """Return the publications of versions above `after`, by version."""
        wanted: queries.Query = ({"run_id": run_id, "version": {"$gt": after}}, [("version", 1)])
        return await self._found("list versions", "versions", wanted, documents.version_from)

    async def seals(self, run_id: str, *, newest: int | None = None) -> list[SealRow]:
        """Return the links of the run's audit chain by number, or only the `newest` ones."""
        if newest == 0:  # MongoDB's word for no limit
            return []
        wanted: queries.Query = ({"run_id": run_id}, [("number", -1)])
        found = await self._found("list seals", "seals", wanted, documents.seal_from, limit=newest or 0)
        return found[::-1]

    async def num_sealed(self, run_id: str) -> int:
        """Return the number of records that `add_seal` has marked."""

        async def count(database: Any) -> int:
            wanted = {"run_id": run_id, "sealed_calls": {"$ne": None}}
            return int(await database["records"].count_documents(wanted))

        return await self._connection.call("count sealed records", count, writes=False)

    async def last_version(self, run_id: str) -> int:
        """Return the highest version ever published in the run, -1 if none."""

        async def find(database: Any) -> int:
            kept = await database["runs"].find_one({"_id": run_id}, {"last_version": 1})
            return -1 if kept is None else int(kept["last_version"])

        return await self._connection.call("find the last version", find, writes=False)

    async def records(
        self, run_id: str, *, task_id: str | None = None, is_eval: bool | None = None, limit: int | None = None
    ) -> list[Record]:
        """Return the first `limit` records of a run in the order of their start."""
        if limit == 0:  # MongoDB's word for no limit
            return []
        wanted = queries.records(run_id, task_id, is_eval=is_eval)
        return await self._found("list records", "records", wanted, documents.record_from, IN_LIST, limit=limit or 0)

    async def episode(self, record_id: str) -> Episode | None:
        """Return a record, by id or unique id prefix, with all of its calls; `StoreError` if several ids match."""
        what = f"find record {record_id}"
        wanted = queries.records_with_prefix(record_id)
        records = await self._found(what, "records", wanted, documents.record_from, limit=3)
        if not records:
            return None
        if len(records) > 1 and records[0].id != record_id:
            names = ", ".join(record.id for record in records)
            raise StoreError(
                f"{self._where}: several records start with '{record_id}' ({names}, …); give more of the id"
            )
        (found,) = await self._whole(records[:1])
        return found

    async def episodes(self, record_ids: Sequence[str]) -> list[Episode]:
        """Return records with all of their calls, in the order of their ids."""
        by_id: dict[str, Record] = {}
        for some in _slices(list(record_ids)):
            wanted: queries.Query = ({"_id": {"$in": list(some)}}, [])
            for record in await self._found("find records", "records", wanted, documents.record_from):
                by_id[record.id] = record
        return await self._whole([by_id[name] for name in record_ids if name in by_id])

    async def _whole(self, records: Sequence[Record]) -> list[Episode]:
        """Read the LLM calls and the tool calls of records."""
        read = functools.partial(_read_tool_calls, records=records)
        calls = await self._connection.call("read tool calls", read, writes=False)
        return [
            attrs.evolve(episode, tool_calls=tuple(calls.get(episode.record.id, ())))
            for episode in await self._episodes(records)
        ]

    async def usage(self, run_id: str) -> Mapping[str, RecordUsage]:
        """Return the LLM calls and tokens so far by record id; records without a call are left out."""
        sums = {"prompt": {"$sum": "$prompt_tokens"}, "output": {"$sum": "$output_tokens"}}
        pipeline: list[Document] = [
            {"$match": {"run_id": run_id}},
            {"$group": {"_id": "$record_id", "calls": {"$sum": 1}, **sums}},
        ]
        return {
            kept["_id"]: RecordUsage(
                calls=int(kept["calls"]), prompt_tokens=int(kept["prompt"]), output_tokens=int(kept["output"])
            )
            for kept in await self._aggregated("count tokens", pipeline)
        }

    async def last_outputs(self, run_id: str) -> Mapping[str, Message]:
        """Return the message sampled by each record's last LLM call by record id, for records that have a call."""
        pipeline: list[Document] = [
            {"$match": {"run_id": run_id}},
            {"$sort": {"record_id": 1, "seq": 1}},
            {"$group": {"_id": "$record_id", "last": {"$last": "$_id"}}},
        ]
        last = {kept["last"]: kept["_id"] for kept in await self._aggregated("find last replies", pipeline)}
        found: dict[str, Message] = {}
        for ids in _slices(list(last)):
            wanted: queries.Query = ({"_id": {"$in": ids}}, [])
            fields = {"record_id": 1, "output": 1}
            for kept in await self._found("read last replies", "interactions", wanted, documents.restored, fields):
                if "output" in kept:
                    found[kept["record_id"]] = kept["output"]
                elif (episode := await self.episode(kept["record_id"])) is not None:  # too long for its document
                    found[kept["record_id"]] = episode.interactions[-1].output
        return found

    async def members(self, run_id: str, *, live: bool = False) -> list[Member]:
        """Return the members of a run, all or the live ones, in the order in which they joined."""
        wanted = queries.live_members(run_id) if live else queries.members(run_id)
        return await self._found(f"list members of run '{run_id}'", "members", wanted, rows.member_of)

    async def groups(self, run_id: str) -> list[GroupRow]:
        """Return the groups of a run in the order in which they were added."""
        (of_live, _), (wanted, order) = queries.live_members(run_id), queries.groups(run_id)

        async def find(database: Any) -> list[GroupRow]:
            found = [kept async for kept in database["groups"].find(wanted, sort=order)]
            # Afterwards, because the member of a group that was found may have just joined.
            live = {kept["_id"] async for kept in database["members"].find(of_live, {"_id": 1})}
            return [row for kept in found if (row := rows.group_of(kept, live)) is not None]

        return await self._connection.call(f"list groups of run '{run_id}'", find, writes=False)

    async def control(self, run_id: str) -> RunControl:
        """Return what people and the trainer want of the run's members."""

        async def find(database: Any) -> RunControl:
            return rows.control_of(await sampling_state.read(database, run_id, where=self._where))

        return await self._connection.call(f"read the control of run '{run_id}'", find, writes=False)

    async def close(self) -> None:
        """End running calls and disconnect; closing again does nothing, other calls raise `StoreError`."""
        await self._connection.close()

    async def _episodes(self, records: Sequence[Record]) -> list[Episode]:
        """Read the interactions of records with their arrays and, once for all of them, the tools that they share."""
        found: list[Episode] = []
        for some in _slices(records):
            read = functools.partial(_read_episodes, records=some)
            found += await self._connection.call("read interactions", read, writes=False)
        return found

    async def _found(
        self,
        what: str,
        collection: str,
        wanted: queries.Query,
        restore: Callable[[Document], _T],
        fields: Mapping[str, int] | None = None,
        *,
        limit: int = 0,
    ) -> list[_T]:
        """Run a query and convert its documents to values."""
        condition, order = wanted

        async def find(database: Any) -> list[_T]:
            cursor = database[collection].find(condition, fields, sort=order or None, limit=limit)
            return [restore(kept) async for kept in cursor]

        return await self._connection.call(what, find, writes=False)

    async def _aggregated(
        self, what: str, pipeline: Sequence[Mapping[str, Any]], collection: str = "interactions"
    ) -> list[Document]:
        async def aggregate(database: Any) -> list[Document]:
            return await self._connection.driver.aggregate(database[collection], pipeline)

        return await self._connection.call(what, aggregate, writes=False)


def _slices(items: Sequence[_T]) -> list[Sequence[_T]]:
    return [items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE)]


async def _read_episodes(database: Any, records: Sequence[Record]) -> list[Episode]:
    ids = [record.id for record in records]
    (wanted, order), (of_arrays, _) = queries.interactions(ids), queries.arrays(ids)
    calls = [kept async for kept in database["interactions"].find(wanted, sort=order)]
    parts: dict[Any, list[Document]] = {}
    async for part in database["arrays"].find(of_arrays):
        parts.setdefault(part["of"], []).append(part)
    keys = list({kept["tools"] for kept in calls} - {None})
    tools: dict[str | None, Any] = {None: ()}
    async for kept in _by_id(database["tools"], keys):
        tools[kept["_id"]] = documents.restored(kept["value"])
    by_record: dict[str, list[Interaction]] = {}
    for kept in calls:
        own = sorted(parts.get(kept["_id"], ()), key=lambda part: part["part"])
        by_record.setdefault(kept["record_id"], []).append(documents.interaction_from(kept, own, tools[kept["tools"]]))
    return [Episode(record=record, interactions=tuple(by_record.get(record.id, ()))) for record in records]


async def _read_tool_calls(database: Any, records: Sequence[Record]) -> dict[str, list[ToolCall]]:
    """Return the tool calls of records by record id."""
    by_record: dict[str, list[ToolCall]] = {}
    for some in _slices([record.id for record in records]):
        wanted, order = queries.tool_calls(list(some))
        found = [kept async for kept in database["tool_calls"].find(wanted, sort=order)]
        parts: dict[Any, list[Document]] = {}
        if long := sorted({kept["record_id"] for kept in found if "shown" not in kept}):
            of_arrays, _ = queries.arrays(long)
            async for part in database["arrays"].find(of_arrays):
                parts.setdefault(part["of"], []).append(part)
        for kept in found:
            own = sorted(parts.get(kept["_id"], ()), key=lambda part: part["part"])
            by_record.setdefault(kept["record_id"], []).append(tool_call_from(kept, own))
    return by_record


async def _by_id(collection: Any, keys: Sequence[str]) -> AsyncIterator[Document]:
    for some in _slices(keys):
        async for kept in collection.find({"_id": {"$in": some}}):
            yield kept
