"""State of a run's sampling: the fields of its document at which all claims meet, and the plan of the last claim.

A claim changes several documents: the run's position, the new groups, the groups whose positions come again. Without
transactions it begins with one compare-and-set on the run's `revision`, which also writes the *plan*: the complete
documents of the new groups. After that write the claim has happened. Whoever reads the run next completes a plan that
was not completed, so no position is lost if the claimer dies, and none is given twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.errors import StoreError
from agentrl_mongo import rows
from agentrl_mongo.writing import insert_missing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.api.run_rows import RunControl
    from agentrl_mongo.documents import Document

FIELDS = dict.fromkeys(
    (
        *("revision", "plan", "next_index", "admitted_steps", "trained_steps", "sampling_closed", "replaced"),
        *("wanted", "limits", "cancel", "control_revision"),
    ),
    1,
)


@attrs.frozen(kw_only=True)
class SamplingState:
    """Fields of a run's document that its sampling depends on."""

    revision: int
    """Rises with every change of these fields, but those that people set."""
    next_index: int
    """Position of the next new group."""
    admitted_steps: int
    trained_steps: int
    """Number of live steps."""
    closed: bool
    replaced: int

    @classmethod
    def of(cls, kept: Document) -> SamplingState:
        """Read a document of the collection `runs`."""
        return cls(
            revision=int(kept.get("revision", 0)),
            next_index=int(kept.get("next_index", 0)),
            admitted_steps=int(kept.get("admitted_steps", -1)),
            trained_steps=int(kept.get("trained_steps", 0)),
            closed=kept["sampling_closed"],
            replaced=sum(int(count) for count in kept.get("replaced", {}).values()),
        )


async def read(database: Any, run_id: str, *, where: str) -> Document:
    """Return these fields of a run's document; raise `StoreError` if there is no such run."""
    kept: Document | None = await database["runs"].find_one({"_id": run_id}, FIELDS)
    if kept is None:
        raise StoreError(f"{where}: there is no run '{run_id}' in this database")
    return kept


async def settled(database: Any, run_id: str, completed: dict[str, str], *, where: str) -> SamplingState:
    """Return the state of a run's sampling once the plan of the last claim is complete.

    `completed` has the last plan of each run that this process completed.
    """
    kept = await read(database, run_id, where=where)
    plan = kept.get("plan")
    if plan is not None and completed.get(run_id) != plan["id"]:
        await complete(database, plan)
        completed[run_id] = plan["id"]
    return SamplingState.of(kept)


async def commit(
    database: Any, run_id: str, state: SamplingState, plan: Document, *, next_index: int, completed: dict[str, str]
) -> bool:
    """Write a plan and carry it out; return False if the run's sampling has changed since `state`."""
    expected = {"_id": run_id, "revision": state.revision}
    change = {"$set": {"plan": plan, "next_index": next_index}, "$inc": {"revision": 1}}
    if await database["runs"].find_one_and_update(expected, change, {"_id": 1}) is None:
        return False
    await complete(database, plan)
    completed[run_id] = plan["id"]
    return True


async def complete(database: Any, plan: Document) -> None:
    """Do what a plan says, as far as it has not been done.

    Each write expects the state before it, which never returns, so a process that is late does no harm.
    """
    groups = plan["groups"]
    # Positions before groups, so that groups which are there are proof of a complete plan.
    if follows := [group["follows"] for group in groups if group["follows"]]:
        again = {"_id": {"$in": follows}, "again": "released"}
        await database["groups"].update_many(again, {"$set": {"again": "given"}})
    await insert_missing(database["groups"], groups)
    if (begun := plan.get("begun")) is not None:
        reserved = {"_id": begun["_id"], "state": "reserved"}
        change = {name: value for name, value in begun.items() if name != "_id"}
        await database["groups"].update_one(reserved, {"$set": {"state": "open", "queued": True, **change}})


async def set_control(
    database: Any,
    run_id: str,
    *,
    wanted: str | None,
    limits: Mapping[str, int | float | None],
    cancel: Mapping[str, bool],
    where: str,
) -> RunControl | None:
    """Change what the run's members are to do, and return it; None if somebody else changed it meanwhile."""
    kept = await read(database, run_id, where=where)
    before = rows.control_of(kept)
    after = {name: value for name, value in {**before.limits, **limits}.items() if value is not None}
    cancelled = {**dict.fromkeys(before.cancel, True), **cancel}
    change = {
        "wanted": wanted or before.wanted,
        "limits": rows.limits_to(after),
        "cancel": [record for record, is_asked in cancelled.items() if is_asked],
    }
    expected = {"_id": run_id, "control_revision": kept["control_revision"]}
    update = {"$set": change, "$inc": {"control_revision": 1}}
    if await database["runs"].find_one_and_update(expected, update, {"_id": 1}) is None:
        return None
    return rows.control_of(kept | change)
