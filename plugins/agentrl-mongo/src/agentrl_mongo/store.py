"""The store `mongo`: a `Store` in a database of a MongoDB server, one database per run."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import time
import uuid
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure, WriteConcernError, WTimeoutError

from agentrl_core.api.stores import ResumePoint, RunRow, SessionRow, StepRow
from agentrl_core.errors import StoreError
from agentrl_core.types import Group, Interaction, Outcome, Record, Task
from agentrl_mongo import documents, groups, queries
from agentrl_mongo.connection import DUPLICATE
from agentrl_mongo.reader import IN_LIST, PASSWORD_ENV, MongoReader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.api.group_queue import OvertakeLimits
    from agentrl_mongo.documents import Document

_FIRST_LOOK_S, _LAST_LOOK_S = 0.1, 2.0
"""First and longest pause before `take_groups` looks for changes of other processes; those of its own wake it."""
_GIVING_BACK_S = 5.0
"""Longest time that a cancelled `take_groups` takes to give its groups back."""
_DUPLICATE_KEY = 11000


class MongoStore(MongoReader):
    """A `Store` in a database of a MongoDB server.

    Any number of threads and event loops may use it; its client lives on a thread of its own. Every write returns when
    it is on the disks of most servers. While the server is away, calls are repeated for `patience_s`.
    """

    read: ClassVar = MongoReader
    """Opens a database for reading, also while its run is active."""
    _longest_patience_s = math.inf

    @staticmethod
    def secret_variables(options: Mapping[str, Any]) -> Sequence[str]:
        """Return the name of the environment variable with the password."""
        return [str(options.get("password_env", PASSWORD_ENV))]

    async def create_run(self, run: RunRow) -> None:
        """Add a run; raise `StoreError` if its name exists."""
        document = documents.run_to(run)

        async def insert(database: Any) -> None:
            if not await _inserted(database["runs"], document):
                raise StoreError(
                    f"{self._where}: run '{run.id}' exists already; choose another name, or another store.database"
                )

        await self._connection.call(f"add run '{run.id}'", insert, creates=True)

    async def update_run(self, run_id: str, *, status: str, error: str = "") -> None:
        """Set the run's status."""
        fields = {"status": status, "error": documents.readable(error)}
        await self._change_run(f"update run '{run_id}'", run_id, fields)

    async def _change_run(self, what: str, run_id: str, fields: Document) -> None:
        async def update(database: Any) -> None:
            if await database["runs"].find_one_and_update({"_id": run_id}, {"$set": fields}) is None:
                raise self._no_run(run_id)
            self._connection.wake()

        await self._connection.call(what, update)

    async def add_tasks(self, run_id: str, tasks: Sequence[Task], *, task_set: str = "train") -> None:
        """Keep the tasks of one of a run's task sets; leave a task that is already there unchanged."""
        values = [documents.task_to(run_id, task, task_set) for task in tasks]

        async def insert(database: Any) -> None:
            await self._check(database, "runs", run_id, self._no_run(run_id))
            if not values:
                return
            try:
                await database["tasks"].insert_many(values, ordered=False)
            except BulkWriteError as error:
                for fault in error.details["writeErrors"]:
                    if fault["code"] != _DUPLICATE_KEY:
                        raise OperationFailure(fault["errmsg"], fault["code"]) from None
                for fault in error.details["writeConcernErrors"]:
                    late = fault.get("errInfo", {}).get("wtimeout")
                    kind = WTimeoutError if late else WriteConcernError
                    raise kind(fault["errmsg"], fault["code"], fault) from None

        await self._connection.call(f"add tasks of run '{run_id}'", insert)

    async def add_group(
        self, run_id: str, group_id: str, task_id: str, *, index: int, size: int, version: int, is_eval: bool = False
    ) -> None:
        """Announce a group before its first record."""
        document = {
            "_id": f"{run_id}/{group_id}",
            "run_id": run_id,
            "id": group_id,
            "task_id": documents.plain(task_id, f"group {group_id}"),
            "index": index,
            "size": size,
            "version": version,
            "is_eval": is_eval,
            "state": "open",
            "queued": not is_eval,
            "order": documents.next_order(),
        }
        what = f"add group {group_id} to run '{run_id}'"
        await self._add(what, "groups", document, after=("runs", run_id, self._no_run(run_id)))

    async def add_record(self, record: Record) -> None:
        """Announce a record with the outcome `running`."""
        what = f"add record {record.id} to group {record.group_id} of run '{record.run_id}'"
        missing = StoreError(f"{self._where}: cannot {what}: there is no such group in this database")
        key = f"{record.run_id}/{record.group_id}"
        await self._add(what, "records", documents.record_to(record), after=("groups", key, missing))

    async def add_interaction(self, run_id: str, interaction: Interaction) -> None:
        """Append a finished LLM call of an announced record; once this returns, it survives a killed process."""
        what = f"add interaction {interaction.id} to record {interaction.record_id}"
        missing = StoreError(f"{self._where}: cannot {what}: there is no such record in this database")
        tools = _tools_document(run_id, interaction)
        document, arrays = documents.interaction_to(run_id, interaction, tools["_id"] if tools else None)

        async def insert(database: Any) -> None:
            await self._check(database, "records", interaction.record_id, missing)
            if tools and ("tools", tools["_id"]) not in self._connection.known:
                await _inserted(database["tools"], tools)
                self._connection.known.add(("tools", tools["_id"]))
            for part in arrays:
                await _inserted(database["arrays"], part)
            if not await _inserted(database["interactions"], document):
                raise StoreError(f"{self._where}: cannot {what}: {DUPLICATE}")

        await self._connection.call(what, insert)

    async def add_session(self, session: SessionRow) -> None:
        """Keep a session of an announced record."""
        what = f"add the session of record {session.record_id}"
        missing = StoreError(f"{self._where}: cannot {what}: there is no such record in this database")
        after = ("records", session.record_id, missing)
        await self._add(what, "sessions", documents.session_to(session), after=after)

    async def update_session(
        self, record_id: str, *, state: Literal["open", "ended", "closed"], rewards: Mapping[str, float]
    ) -> None:
        """Write the state and rewards of a record's session; once this returns, they survive a killed process."""
        what = f"update the session of record {record_id}"
        fields = {"state": state, "rewards": documents.plain(dict(rewards), what)}

        async def update(database: Any) -> None:
            if await database["sessions"].find_one_and_update({"_id": record_id}, {"$set": fields}) is None:
                raise StoreError(f"{self._where}: record {record_id} has no session to update")

        await self._connection.call(what, update)

    async def finish_record(self, record: Record) -> bool:
        """Move a running record to its final outcome; return False and change nothing if it was not running."""
        if record.outcome is Outcome.RUNNING:
            raise ValueError(f"record {record.id}: expected a final outcome, got 'running'")
        fields = documents.final_fields(record) | {"finish": uuid.uuid4().hex}

        async def update(database: Any) -> bool:
            self._connection.known.discard(("records", record.id))
            running = {"_id": record.id, "outcome": "running"}
            if await database["records"].find_one_and_update(running, {"$set": fields}) is not None:
                return True
            kept = await database["records"].find_one({"_id": record.id}, {"finish": 1})
            # No change is normal for a record that a resumed run has cancelled, but not for an unknown id.
            if kept is None:
                raise StoreError(f"{self._where}: no record {record.id} to finish; it was never announced")
            return bool(kept.get("finish") == fields["finish"])

        return await self._connection.call(f"finish record {record.id}", update)

    async def finish_group(self, run_id: str, group_id: str, *, usable: bool) -> None:
        """Mark an open group, all of whose slots are terminal, as ready if it is usable, else as dropped."""
        key = f"{run_id}/{group_id}"
        change = {"state": "ready"} if usable else {"state": "dropped", "queued": False}

        async def update(database: Any) -> None:
            self._connection.known.discard(("groups", key))
            changed = await database["groups"].find_one_and_update({"_id": key, "state": "open"}, {"$set": change})
            if changed is None and await database["groups"].find_one({"_id": key}, {"_id": 1}) is None:
                raise StoreError(
                    f"{self._where}: no group {group_id} in run '{run_id}' to finish; it was never announced"
                )
            self._connection.wake()

        await self._connection.call(f"finish group {group_id}", update)

    async def take_groups(self, run_id: str, count: int, *, ahead: OvertakeLimits | None = None) -> list[Group]:
        """Wait until the next `count` training groups are ready; mark them taken and return them."""
        what = f"take groups of run '{run_id}'"
        taker = groups.Taker(uuid.uuid4().hex)
        pause_s = _FIRST_LOOK_S

        async def take(database: Any) -> list[groups.WaitingGroup] | None:
            async with self._connection.taking:
                looking = asyncio.ensure_future(
                    groups.take(database, run_id, count, ahead, taker=taker, where=self._where)
                )
                try:
                    return await asyncio.shield(looking)
                except asyncio.CancelledError:
                    # A write that has begun goes on in the driver's thread, so giving back before its end is too early.
                    await asyncio.wait([looking])
                    raise

        async def give_back(database: Any) -> None:
            async with self._connection.taking:
                await groups.give_back(database, taker)

        try:
            while True:
                seen = self._connection.changes
                if (taken := await self._connection.call(what, take)) is not None:
                    return await self._groups_of(run_id, taken)
                await self._connection.wait(seen, pause_s)
                pause_s = _FIRST_LOOK_S if self._connection.changes > seen else min(2 * pause_s, _LAST_LOOK_S)
        except asyncio.CancelledError:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_GIVING_BACK_S):
                    await self._connection.call(what, give_back)
            raise

    async def _groups_of(self, run_id: str, taken: Sequence[groups.WaitingGroup]) -> list[Group]:
        """Read the scored episodes of groups."""
        wanted = queries.scored_records(run_id, [group.id for group in taken])
        records = await self._found(f"read groups of run '{run_id}'", "records", wanted, documents.record_from, IN_LIST)
        records.sort(key=lambda record: (record.sample_index, record.attempt))
        episodes = await self._episodes(records)
        return [
            Group(
                id=group.id,
                run_id=run_id,
                task_id=documents.restored(group.task_id),
                index=group.index,
                version=group.version,
                episodes=tuple(episode for episode in episodes if episode.record.group_id == group.id),
            )
            for group in taken
        ]

    async def close_sampling(self, run_id: str) -> None:
        """Announce that no more groups will come; `take_groups` wakes up and stops waiting for open groups."""
        await self._change_run(f"close sampling of run '{run_id}'", run_id, {"sampling_closed": True})

    async def add_step(self, step: StepRow) -> None:
        """Record an optimizer step and its consumption; raise `StoreError` if a step with its number is not voided."""
        what = f"add step {step.step} of run '{step.run_id}'"
        await self._add(what, "steps", documents.step_to(step), after=("runs", step.run_id, self._no_run(step.run_id)))

    async def void_after(self, run_id: str, step: int) -> int:
        """Void the steps after `step`, so that the run can continue from there; return the number of voided steps."""
        what = f"void the steps of run '{run_id}' after {step}"

        async def void(database: Any) -> None:
            await self._check(database, "runs", run_id, self._no_run(run_id))
            await groups.void_after(database, run_id, step)

        # Counted first, because a repeated call finds the steps that it has voided already.
        voided = await self._connection.call(what, lambda database: groups.count_after(database, run_id, step))
        await self._connection.call(what, void)
        return voided

    async def resume_point(self, run_id: str, step: int) -> ResumePoint:
        """Return the position from which sampling and versions continue; only live steps up to `step` count."""
        what = f"find where run '{run_id}' goes on"
        next_index, left = await self._connection.call(
            what, lambda database: groups.left(database, run_id, step), writes=False
        )
        last = await self.last_version(run_id)
        return ResumePoint(step=step, next_index=next_index, last_version=last, left=left)

    async def add_version(self, run_id: str, version: int, *, step: int) -> None:
        """Record a weight publication; raise `StoreError` unless `version` exceeds all earlier ones of the run."""
        document = {"_id": f"{run_id}/{version}", "run_id": run_id, "version": version, "step": step}
        document |= {"published_at": time.time(), "order": documents.next_order()}

        async def insert(database: Any) -> None:
            # The run's highest version first: if this process ends in between, a version is skipped, and none is
            # published twice.
            lower = {"_id": run_id, "last_version": {"$lt": version}}
            change = {"$set": {"last_version": version, "last_version_by": document["order"]}}
            if await database["runs"].find_one_and_update(lower, change) is None:
                kept = await database["runs"].find_one({"_id": run_id})
                if kept is None:
                    raise self._no_run(run_id)
                if kept.get("last_version_by") != document["order"]:
                    raise StoreError(
                        f"{self._where}: run '{run_id}' cannot publish version {version} after version "
                        f"{kept['last_version']}; versions only rise; expected at least {kept['last_version'] + 1}"
                    )
            await _inserted(database["versions"], document)

        await self._connection.call(f"add version {version} of run '{run_id}'", insert)

    async def flush(self) -> None:
        """Return once everything that was written so far survives a power cut.

        Each write has already waited for that; this one fails if the server is away.
        """

        async def ask(database: Any) -> None:
            await database["meta"].find_one({})

        await self._connection.call("flush", ask)

    async def _add(self, what: str, collection: str, document: Document, *, after: tuple[str, str, StoreError]) -> None:
        """Insert a document, unless the one that it belongs to is missing."""

        async def insert(database: Any) -> None:
            await self._check(database, *after)
            if not await _inserted(database[collection], document):
                raise StoreError(f"{self._where}: cannot {what}: {DUPLICATE}")

        await self._connection.call(what, insert)

    async def _check(self, database: Any, collection: str, key: str, missing: StoreError) -> None:
        """Raise `missing` if there is no document with this key; none is ever deleted, so known ones are remembered."""
        if (collection, key) in self._connection.known:
            return
        if await database[collection].find_one({"_id": key}, {"_id": 1}) is None:
            raise missing
        self._connection.known.add((collection, key))

    def _no_run(self, run_id: str) -> StoreError:
        return StoreError(f"{self._where}: there is no run '{run_id}' in this database")


async def _inserted(collection: Any, document: Document) -> bool:
    """Insert a document; return False if another one with its key is there.

    The document that is there may be the same, if the connection broke after an earlier try.
    """
    try:
        await collection.insert_one(document)
    except DuplicateKeyError:
        same = {"_id": document["_id"]} | ({"order": document["order"]} if "order" in document else {})
        return await collection.find_one(same, {"_id": 1}) is not None
    return True


def _tools_document(run_id: str, interaction: Interaction) -> Document | None:
    """Return the document of an interaction's tools, which it shares with most others; None without tools."""
    if not interaction.tools:
        return None
    value = documents.plain(interaction.tools, f"interaction {interaction.id}")
    digest = hashlib.sha256(json.dumps(value).encode()).hexdigest()
    return {"_id": f"{run_id}/{digest}", "run_id": run_id, "value": value}
