"""Recording side of the store: writes runs, tasks, records, LLM calls, sessions and versions of the weights."""

from __future__ import annotations

import hashlib
import json
import math
import time
import uuid
from typing import TYPE_CHECKING, Any, Literal

from agentrl_core.api.audit import escaped
from agentrl_core.errors import ClaimLostError, MemberError, StoreError
from agentrl_core.types import Interaction, Outcome, Record, Task
from agentrl_mongo import claims, documents, fencing, members
from agentrl_mongo.connection import DUPLICATE
from agentrl_mongo.reader import MongoReader
from agentrl_mongo.tool_documents import tool_call_to
from agentrl_mongo.writing import insert_missing, inserted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.api.run_rows import RunRow, SessionRow
    from agentrl_core.types import ToolCall
    from agentrl_mongo.documents import Document


class MongoRecorder(MongoReader):
    """Writes whose documents belong to one run or one record."""

    _longest_patience_s = math.inf

    async def create_run(self, run: RunRow) -> None:
        """Add a run; raise `StoreError` if its name exists."""
        document = documents.run_to(run)

        async def insert(database: Any) -> None:
            if not await inserted(database["runs"], document):
                raise StoreError(
                    f"{self._where}: run '{run.id}' exists already; choose another name, or another store.database"
                )

        await self._connection.call(f"add run '{run.id}'", insert, creates=True)

    async def update_run(self, run_id: str, *, status: str, error: str = "", member_id: str = "") -> None:
        """Set the run's status."""
        fields = {"status": status, "error": escaped(error)}
        await self._change_run(f"update run '{run_id}'", run_id, fields, member_id)

    async def _change_run(self, what: str, run_id: str, fields: Document, member_id: str) -> None:
        change = {"$set": fields, "$inc": {"revision": 1}}

        async def update(database: Any) -> None:
            await fencing.change_run(database, run_id, change, member_id=member_id, where=self._where)
            self._connection.wake()

        await self._connection.call(what, update)

    async def add_tasks(self, run_id: str, tasks: Sequence[Task], *, task_set: str = "train") -> None:
        """Keep the tasks of one of a run's task sets; leave a task that is already there unchanged."""
        values = [documents.task_to(run_id, task, task_set) for task in tasks]

        async def insert(database: Any) -> None:
            await self._check(database, "runs", run_id, self._no_run(run_id))
            await insert_missing(database["tasks"], values)

        await self._connection.call(f"add tasks of run '{run_id}'", insert)

    async def add_record(self, record: Record, *, member_id: str = "") -> None:
        """Announce a record with the outcome `running`; with `member_id`, `ClaimLostError` unless it has the group."""
        what = f"add record {record.id} to group {record.group_id} of run '{record.run_id}'"
        document = documents.record_to(record)

        async def insert(database: Any) -> None:
            if member_id:
                await claims.check(database, record.run_id, record.group_id, member_id, where=self._where)
            elif await database["groups"].find_one({"_id": f"{record.run_id}/{record.group_id}"}, {"_id": 1}) is None:
                raise StoreError(f"{self._where}: cannot {what}: there is no such group in this database")
            if not await inserted(database["records"], document):
                raise StoreError(f"{self._where}: cannot {what}: {DUPLICATE}")
            if not member_id:
                return
            try:
                await claims.check(database, record.run_id, record.group_id, member_id, where=self._where)
            except ClaimLostError:
                await members.cancel(database, [record.id], "lost")
                raise

        await self._connection.call(what, insert)

    async def add_interaction(self, run_id: str, interaction: Interaction) -> None:
        """Append a finished LLM call of an announced record; once this returns, it survives a killed process."""
        what = f"add interaction {interaction.id} to record {interaction.record_id}"
        missing = StoreError(f"{self._where}: cannot {what}: there is no such record in this database")
        tools = _tools_document(run_id, interaction)
        document, arrays = documents.interaction_to(run_id, interaction, tools["_id"] if tools else None)

        async def insert(database: Any) -> None:
            await self._check(database, "records", interaction.record_id, missing)
            if tools and ("tools", tools["_id"]) not in self._connection.known:
                await inserted(database["tools"], tools)
                self._connection.known.add(("tools", tools["_id"]))
            for part in arrays:
                await inserted(database["arrays"], part)
            if not await inserted(database["interactions"], document):
                raise StoreError(f"{self._where}: cannot {what}: {DUPLICATE}")

        await self._connection.call(what, insert)

    async def add_tool_call(self, run_id: str, call: ToolCall) -> None:
        """Append an ended tool call of an announced record; once this returns, it survives a killed process."""
        what = f"add tool call {call.id} to record {call.record_id}"
        missing = StoreError(f"{self._where}: cannot {what}: there is no such record in this database")
        document, parts = tool_call_to(run_id, call)

        async def insert(database: Any) -> None:
            await self._check(database, "records", call.record_id, missing)
            for part in parts:
                await inserted(database["arrays"], part)
            if not await inserted(database["tool_calls"], document):
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

    async def add_version(self, run_id: str, version: int, *, step: int, member_id: str = "") -> None:
        """Record a weight publication; raise `StoreError` unless `version` exceeds all earlier ones of the run."""
        document = {"_id": f"{run_id}/{version}", "run_id": run_id, "version": version, "step": step}
        document |= {"voided": False, "published_at": time.time(), "order": documents.next_order()}

        async def insert(database: Any) -> None:
            # The run's highest version first: if this process ends in between, a version is skipped, and none is
            # published twice.
            lower = {"last_version": {"$lt": version}}
            change = {"$set": {"last_version": version, "last_version_by": document["order"]}}
            fence = {"member_id": member_id, "where": self._where}
            if not await fencing.change_run(database, run_id, change, only=lower, **fence):
                kept = await database["runs"].find_one({"_id": run_id})
                if kept.get("last_version_by") != document["order"]:
                    raise StoreError(
                        f"{self._where}: run '{run_id}' cannot publish version {version} after version "
                        f"{kept['last_version']}; versions only rise; expected at least {kept['last_version'] + 1}"
                    )
            await inserted(database["versions"], document)
            try:
                await fencing.check(database, run_id, **fence)
            except MemberError:
                # A successor that came in between has voided the later versions that it found.
                await database["versions"].update_one({"_id": document["_id"]}, {"$set": {"voided": True}})
                raise

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
            if not await inserted(database[collection], document):
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


def _tools_document(run_id: str, interaction: Interaction) -> Document | None:
    """Return the document of an interaction's tools, which it shares with most others; None without tools."""
    if not interaction.tools:
        return None
    value = documents.plain(interaction.tools, f"interaction {interaction.id}")
    digest = hashlib.sha256(json.dumps(value).encode()).hexdigest()
    return {"_id": f"{run_id}/{digest}", "run_id": run_id, "value": value}
