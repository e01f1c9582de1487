"""Audit side of the store: the records that wait for a seal, and the seals that are added."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from agentrl_core.api.run_rows import EndedRecord
from agentrl_core.errors import StoreError
from agentrl_core.types import Outcome
from agentrl_mongo import documents, fencing, queries, rows
from agentrl_mongo.reader import MongoReader
from agentrl_mongo.writing import in_slices, inserted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentrl_core.api.run_rows import SealRow
    from agentrl_mongo.documents import Document

_ENDED = sorted(outcome.value for outcome in Outcome if outcome is not Outcome.RUNNING)


def unsealed_records(run_id: str) -> queries.Query:
    """Ended records that no seal names."""
    return {"run_id": run_id, "sealed_calls": None, "outcome": {"$in": _ENDED}}, []


class MongoSeals(MongoReader):
    """The part of a `Store` that a run's audit trail needs."""

    async def unsealed(self, run_id: str, *, limit: int, late: bool = False) -> list[EndedRecord]:
        """Return ended records that no seal names or, with `late`, that got another call after their seal."""
        counts = await self._num_calls(run_id) if late else {}

        async def find(database: Any) -> list[EndedRecord]:
            wanted, _ = unsealed_records(run_id)
            if late:
                wanted = {"_id": {"$in": await _late(database, run_id, counts, limit)}}
            found = [kept async for kept in database["records"].find(wanted, limit=limit)]
            return await _with_calls(database, run_id, found)

        return await self._connection.call(f"find the unsealed records of run '{run_id}'", find, writes=False)

    async def _num_calls(self, run_id: str) -> Mapping[str, int]:
        """Return the number of LLM calls and tool calls by record id."""
        pipeline: list[Document] = [
            {"$match": {"run_id": run_id}},
            {"$group": {"_id": "$record_id", "calls": {"$sum": 1}}},
        ]
        counts: Counter[str] = Counter()
        for collection in ("interactions", "tool_calls"):
            for kept in await self._aggregated("count calls", pipeline, collection):
                counts[kept["_id"]] += kept["calls"]
        return counts

    async def add_seal(self, seal: SealRow, *, records: Mapping[str, int], member_id: str = "") -> None:
        """Append a link to the run's audit chain, then mark the records that it names.

        If this process ends in between, the next seal names the same records again.
        """
        document = documents.seal_to(seal) | ({"written_by": member_id} if member_id else {})
        by_count: dict[int, list[str]] = {}
        for name, count in records.items():
            by_count.setdefault(count, []).append(name)

        async def insert(database: Any) -> None:
            if await database["runs"].find_one({"_id": seal.run_id}, {"_id": 1}) is None:
                raise StoreError(f"{self._where}: there is no run '{seal.run_id}' in this database")
            await fencing.check(database, seal.run_id, member_id, where=self._where)
            if not await inserted(database["seals"], document) and not await self._overruled(database, document):
                raise StoreError(
                    f"{self._where}: run '{seal.run_id}' has a seal {seal.number} already; another process trains the "
                    "same run: end it, and resume"
                )
            # If this member is live, its successor will read the seal.
            await fencing.check(database, seal.run_id, member_id, where=self._where)
            for count, names in by_count.items():
                for some in in_slices(names):
                    await database["records"].update_many({"_id": {"$in": some}}, {"$set": {"sealed_calls": count}})

        await self._connection.call(f"add seal {seal.number} of run '{seal.run_id}'", insert)

    async def _overruled(self, database: Any, document: Document) -> bool:
        """Replace the seal with which a former trainer, suspended in between, came before the live one."""
        member_id = document.get("written_by", "")
        await fencing.check(database, document["run_id"], member_id, where=self._where)
        late = {"_id": document["_id"], "written_by": {"$exists": True, "$ne": member_id}}
        return bool(member_id) and await database["seals"].find_one_and_replace(late, document) is not None


async def _late(database: Any, run_id: str, counts: Mapping[str, int], limit: int) -> list[str]:
    """Return records with more calls than their seal names."""
    wanted = {"run_id": run_id, "sealed_calls": {"$gte": 0}}
    sealed = database["records"].find(wanted, {"sealed_calls": 1})
    return [kept["_id"] async for kept in sealed if counts.get(kept["_id"], 0) > kept["sealed_calls"]][:limit]


async def _with_calls(database: Any, run_id: str, found: Sequence[Document]) -> list[EndedRecord]:
    """Add the groups of records and the digests of their calls."""
    groups = {}
    for some in in_slices(sorted({f"{run_id}/{kept['group_id']}" for kept in found})):
        async for kept in database["groups"].find({"_id": {"$in": some}}):
            groups[kept["id"]] = rows.group_of(kept, {kept.get("member_id", "")})
    ids = [kept["_id"] for kept in found]
    calls = await _digests(database["interactions"], queries.interactions, ids)
    tool_calls = await _digests(database["tool_calls"], queries.tool_calls, ids)
    return [
        EndedRecord(
            record=documents.record_from(kept),
            group=group,
            calls=tuple(calls.get(kept["_id"], ())),
            tool_calls=tuple(tool_calls.get(kept["_id"], ())),
        )
        for kept in found
        if (group := groups[kept["group_id"]]) is not None
    ]


async def _digests(
    collection: Any, query: Callable[[list[str]], queries.Query], record_ids: Sequence[str]
) -> dict[str, list[str]]:
    """Return the digests of records' calls of one kind by record id, each in order."""
    found: dict[str, list[str]] = {}
    for some in in_slices(record_ids):
        wanted, order = query(some)
        async for kept in collection.find(wanted, {"record_id": 1, "digest": 1}, sort=order):
            found.setdefault(kept["record_id"], []).append(kept.get("digest", ""))
    return found
