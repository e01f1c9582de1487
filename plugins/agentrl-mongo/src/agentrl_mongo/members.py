"""Members of a run in a database: joining, heartbeats, and the end of a member with the records that it ran.

A member is one document, and its end is one compare-and-set on it. Nothing else has to happen for its groups to be
free: a group whose member is not live counts as having none. So a process that dies between that write and the next
ones leaves nothing that is stuck; whoever claims groups first takes them from members that are not live.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentrl_core.errors import MemberError
from agentrl_mongo import queries, rows
from agentrl_mongo.writing import in_slices, inserted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentrl_core.api.members import MemberState
    from agentrl_mongo.documents import Document

DETAILS = {
    "lost": "the process that ran it was declared lost: its heartbeat had stopped for longer than its lease",
    "left": "the process that ran it left the run first",
    "resumed": "the process that ran it ended first",
}
"""Reason of a cancelled record -> its text for a person."""


async def join(database: Any, document: Document, *, where: str) -> None:
    """Add a member; a unique index lets only one live trainer in."""
    while not await inserted(database["members"], document):
        run_id = document["run_id"]
        wanted, _ = queries.live_members(run_id)
        other = await database["members"].find_one({**wanted, "role": "train"})
        if other is not None and document["role"] == "train":
            name = rows.member_of(other).name
            raise MemberError(
                f"{where}: run '{run_id}' has a trainer already: {name}; end that process, or wait "
                f"{other['lease_s']:g} s if it has died"
            )
        if await database["members"].find_one({"_id": document["_id"]}, {"_id": 1}) is not None:
            raise MemberError(f"{where}: a member {document['_id']} has joined before; ids are used once")
        # The other trainer left between the two queries.


async def live(database: Any, run_id: str) -> list[str]:
    """Return the ids of the live members."""
    wanted, _ = queries.live_members(run_id)
    return [kept["_id"] async for kept in database["members"].find(wanted, {"_id": 1})]


async def run_of(database: Any, member_id: str) -> str | None:
    """Return the run of a live member; None if there is no such member."""
    kept = await database["members"].find_one({"_id": member_id, "state": "live"}, {"run_id": 1})
    return None if kept is None else kept["run_id"]


async def end(database: Any, member_id: str, state: MemberState, *, token: str, beats: int | None = None) -> bool:
    """End a live member, if it still has this number of heartbeats; return whether this call ended it.

    `token` names the call, so that it knows its own write again if it is repeated.
    """
    expected = {"_id": member_id, "state": "live"} | ({} if beats is None else {"beats": beats})
    change = {"$set": {"state": state, "ended_by": token}}
    kept = await database["members"].find_one_and_update(expected, change)
    if kept is None and (kept := await database["members"].find_one({"_id": member_id, "ended_by": token})) is None:
        return False
    await free_groups(database, kept["run_id"], await live(database, kept["run_id"]))
    return True


async def free_groups(database: Any, run_id: str, live: Sequence[str]) -> None:
    """Take the groups of all members that are not live from them, and end the records that they ran.

    Records first: a group that still has such a member is found again if this process dies in between. The member
    announces no record meanwhile, or cancels it at once; see `claims.check`.
    """
    wanted, _ = queries.abandoned_groups(run_id, live)
    held = [kept async for kept in database["groups"].find(wanted, {"id": 1, "state": 1, "member_id": 1})]
    if not held:
        return
    names = sorted({kept["member_id"] for kept in held})
    states = {kept["_id"]: kept["state"] async for kept in database["members"].find({"_id": {"$in": names}})}
    # A member that has joined since `live` was read is live as well.
    held = [kept for kept in held if states[kept["member_id"]] != "live"]
    await cancel_records_of(database, run_id, {kept["id"]: states[kept["member_id"]] for kept in held})
    await remove_reserved(database, [kept["_id"] for kept in held if kept["state"] == "reserved"])
    for kept in held:
        still = {"_id": kept["_id"], "state": "open", "member_id": kept["member_id"]}
        change = {"$set": {"member_id": "", "claim": ""}, "$inc": {"takeovers": 1}}
        await database["groups"].update_one(still, change)


async def remove_reserved(database: Any, keys: Sequence[str]) -> None:
    """Hide reserved groups for ever.

    Their documents stay: another process that completes an old plan would otherwise insert them again.
    """
    gone = {"state": "gone", "pending": False, "member_id": "", "claim": ""}
    for some in in_slices(keys):
        await database["groups"].update_many({"_id": {"$in": some}, "state": "reserved"}, {"$set": gone})


async def cancel_records_of(database: Any, run_id: str, groups: Mapping[str, str]) -> None:
    """End the running records of groups: group id -> reason."""
    for reason in sorted(set(groups.values())):
        for some in in_slices([group for group, found in groups.items() if found == reason]):
            wanted, _ = queries.records_of(run_id, some, "running")
            await cancel(database, [kept["_id"] async for kept in database["records"].find(wanted, {"_id": 1})], reason)


async def cancel(database: Any, record_ids: Iterable[str], reason: str) -> None:
    """End records that run, and their sessions.

    Sessions first: whoever repeats this after a crash looks for running records only.
    """
    ended = {"outcome": "cancelled", "reason": reason, "detail": DETAILS[reason]}
    for some in in_slices(list(record_ids)):
        await database["sessions"].update_many({"_id": {"$in": some}}, {"$set": {"state": "closed"}})
        await database["records"].update_many({"_id": {"$in": some}, "outcome": "running"}, {"$set": ended})
