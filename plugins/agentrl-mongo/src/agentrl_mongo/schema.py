"""Collections of a database, their indexes, and the version of the layout.

| collection | one document for each | key |
|---|---|---|
| `meta` | the database: version of the layout | `schema` |
| `runs` | run | its name |
| `tasks` | task of a task set | |
| `members` | process that takes part in a run | its id |
| `groups` | group | `RUN/GROUP` |
| `records` | record | its id |
| `interactions` | LLM call, without its arrays | |
| `tool_calls` | tool call with what the model was shown; very long contents are in `arrays` | |
| `arrays` | LLM call (several for very long ones): token ids and logprobs as 32-bit values, little endian, and sampling masks | |
| `tools` | list of tools that calls were offered | `RUN/DIGEST` |
| `sessions` | session of a record | the record's id |
| `steps`, `versions` | optimizer step, weight publication | |
| `seals` | link of the run's audit chain | `RUN/NUMBER` |

Documents are only added, except that runs, members, groups, records, sessions, steps and versions change their state;
each change names the state that it expects. No write needs a transaction, which a server alone does not have: a change
of several documents begins with the one that decides, and whoever finds the others unchanged completes it.

Fields of a group, besides those of `GroupRow`: `queued` (waits to be taken), `pending` (counts for the admission),
`claim` (the call that claimed it), `again` (its position is to be sampled again: `waiting` for the next `admit`,
`released`, or `given` to the group that has this one's key in `follows`; with `again_tries`, and `again_always` if it
comes whatever its tries). Of a record: `sealed_calls`, the number of its LLM calls and tool calls in the seal
that names it.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pymongo import ASCENDING, IndexModel

from agentrl_core.errors import StoreError
from agentrl_mongo import upgrade

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCHEMA_VERSION = 4
"""Number of the layout above. 1: without members and claims. 2: without tool calls, and marks of records.
3: without sampling masks."""

_SCHEMA = "schema"


def _index(*fields: str, unique: bool = False, **options: Any) -> IndexModel:
    if unique:
        options["unique"] = True
    return IndexModel([(field, ASCENDING) for field in fields], **options)


INDEXES: Mapping[str, Sequence[IndexModel]] = {
    "tasks": [
        _index("run_id", "task_set", "id", unique=True),
        _index("run_id", "order"),
        _index("run_id", "task_set", "order"),
    ],
    "groups": [
        _index("run_id", "queued", "version", "index"),
        _index("run_id", "order"),
        _index("run_id", "pending"),
        _index("run_id", "is_eval", "state", "member_id", "order"),
        _index("run_id", "member_id"),
        _index("run_id", "again", "index"),
    ],
    "members": [
        _index("run_id", "order"),
        _index("run_id", "state", "order"),
        # A run has one trainer at a time.
        _index("run_id", unique=True, partialFilterExpression={"role": "train", "state": "live"}),
    ],
    "records": [
        _index("run_id", "started_at", "order"),
        _index("run_id", "task_id", "started_at", "order"),
        _index("run_id", "outcome", "group_id"),
        _index("run_id", "sealed_calls", "outcome"),
        _index("run_id", "group_id"),
    ],
    "interactions": [
        _index("record_id", "seq", unique=True),
        _index("run_id", "record_id", "seq", "prompt_tokens", "output_tokens"),
    ],
    "tool_calls": [_index("record_id", "seq", unique=True), _index("run_id", "record_id")],
    "arrays": [_index("record_id")],
    "sessions": [_index("run_id", "opened_at", "order")],
    "steps": [
        _index("run_id", "order"),
        _index("run_id", "step", unique=True, partialFilterExpression={"voided": False}),
    ],
    "versions": [_index("run_id", "version")],
    "seals": [_index("run_id", "number")],
}
"""Indexes that the store's queries follow, by collection."""


async def create(database: Any) -> None:
    """Make a database a store of this layout, with its indexes; does no harm to a store that is there already."""
    made = {"version": SCHEMA_VERSION, "written_by": f"agentrl-mongo {version('agentrl-mongo')}"}
    await database["meta"].update_one({"_id": _SCHEMA}, {"$setOnInsert": made}, upsert=True)
    for name, indexes in INDEXES.items():
        await database[name].create_indexes(list(indexes))
    kept = await database["meta"].find_one({"_id": _SCHEMA})
    if kept["version"] < SCHEMA_VERSION:
        if kept["version"] == 1:
            await upgrade.from_1(database)
        await database["meta"].update_one({"_id": _SCHEMA}, {"$set": made})


async def is_store(database: Any, where: str) -> bool:
    """Return whether the database is a store, False if it is empty; raise `StoreError` if it is foreign or newer."""
    kept = await database["meta"].find_one({"_id": _SCHEMA})
    if kept is None:
        others = sorted(await database.list_collection_names())
        # Another process may have begun to create the store in between; it writes `meta` first.
        kept = await database["meta"].find_one({"_id": _SCHEMA}) if others else None
        if others and kept is None:
            raise StoreError(
                f"{where}: this is a database of another program (it has {', '.join(others[:5])}); name another with "
                "store.database"
            )
    if kept is None:
        return False
    if kept["version"] > SCHEMA_VERSION:
        raise StoreError(
            f"{where}: written by a newer agentrl-mongo (its schema is {kept['version']}, this one knows up to "
            f"{SCHEMA_VERSION}); upgrade agentrl-mongo, or name another database with store.database"
        )
    return True
