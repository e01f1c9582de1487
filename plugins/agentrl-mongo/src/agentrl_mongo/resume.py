"""Going on from an earlier step: steps and versions that become void, groups that stay, positions that come again.

Every write can be repeated: if the server or this process ends in between, the next resumption completes it. Samplers
may be live meanwhile, so each group changes by compare-and-set.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_mongo import fencing, members, queries, sampling_state
from agentrl_mongo.writing import in_slices

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from agentrl_mongo.documents import Document

_CONSUMED = ["taken", "trained"]
_UNUSABLE = ["dropped", "dead"]
_TRAINABLE = ["scored", "running"]


def _later(run_id: str, step: int) -> Document:
    return {"run_id": run_id, "step": {"$gt": step}, "voided": False}


async def count_after(database: Any, run_id: str, step: int) -> int:
    """Return how many steps `void_after` will void."""
    return int(await database["steps"].count_documents(_later(run_id, step)))


async def live_steps(database: Any, run_id: str) -> int:
    """Return the number of live steps, which is the number of the last one."""
    wanted, order = queries.last_step(run_id)
    kept = await database["steps"].find_one(wanted, {"step": 1}, sort=order)
    return 0 if kept is None else int(kept["step"])


async def void_after(
    database: Any, run_id: str, step: int, completed: dict[str, str], *, member_id: str, where: str
) -> None:
    """Void the steps after `step`, and sort out which groups the run goes on with.

    What is written has been read before `member_id` was found live, so it is of the time before any successor.
    """
    fence: Document = {"member_id": member_id, "where": where}
    # First of all no new group may start: a claimer that has read the run before this write has to begin again.
    await sampling_state.settled(database, run_id, completed, where=where)
    begin = {"$set": {"admitted_steps": -1, "replaced": {}}, "$inc": {"revision": 1}}
    await fencing.change_run(database, run_id, begin, **fence)
    # A claim may have been committed between those two calls.
    await sampling_state.settled(database, run_id, completed, where=where)
    await members.free_groups(database, run_id, await members.live(database, run_id))
    later = {"run_id": run_id, "step": {"$gt": step}, "voided": {"$ne": True}}
    for name in ("steps", "versions"):
        found = [kept["_id"] async for kept in database[name].find(later, {"_id": 1})]
        await fencing.check(database, run_id, **fence)
        for some in in_slices(found):
            await database[name].update_many({"_id": {"$in": some}}, {"$set": {"voided": True}})
    await _sort_groups(database, run_id, **fence)
    await _cancel_records(database, run_id)
    done = {"sampling_closed": False, "trained_steps": await live_steps(database, run_id)}
    await fencing.change_run(database, run_id, {"$set": done, "$inc": {"revision": 1}}, **fence)


@attrs.define
class _Steps:
    """Groups and versions of a run's steps."""

    consumed: set[str] = attrs.field(factory=set)
    """Keys of the groups of live steps."""
    undone: set[str] = attrs.field(factory=set)
    """Keys of the groups of void steps that no live step has."""
    void: set[int] = attrs.field(factory=set)
    """Versions that are void."""


async def _steps(database: Any, run_id: str) -> _Steps:
    found = _Steps()
    async for kept in database["steps"].find({"run_id": run_id}, {"groups": 1, "version": 1, "voided": 1}):
        keys = {f"{run_id}/{group}" for group in kept["groups"]}
        if kept["voided"]:
            found.undone |= keys
            found.void.add(int(kept["version"]))
        else:
            found.consumed |= keys
    found.undone -= found.consumed
    async for kept in database["versions"].find({"run_id": run_id, "voided": True}, {"version": 1}):
        found.void.add(int(kept["version"]))
    return found


async def _sort_groups(database: Any, run_id: str, *, member_id: str, where: str) -> None:
    """Keep the groups that no void weights have touched, and set the others aside."""
    steps, collection = await _steps(database, run_id), database["groups"]
    wanted, _ = queries.pending_groups(run_id)
    pending = [kept async for kept in collection.find(wanted)]
    # A step's groups are marked after it is recorded, so the trainer may have died in between.
    for some in in_slices([kept["_id"] for kept in pending if kept["_id"] in steps.consumed]):
        trained = {"state": "trained", "queued": False, "pending": False}
        await collection.update_many({"_id": {"$in": some}}, {"$set": trained})
    pending = [kept for kept in pending if kept["_id"] not in steps.consumed]
    pending += [kept async for kept in _found_each(collection, sorted(steps.undone)) if kept["state"] == "trained"]
    touched = await _touched_by(database, run_id, [kept["id"] for kept in pending], steps.void)
    aside = [kept for kept in pending if int(kept["version"]) in steps.void or kept["id"] in touched]
    for version in sorted(steps.void):
        wanted, order = queries.ended_groups_of(run_id, version)
        ended = collection.find(wanted, sort=order)
        aside += [kept async for kept in ended if kept["state"] in _UNUSABLE and not kept["is_eval"]]
    wanted, _ = queries.open_evaluations(run_id)
    evaluations = [kept["_id"] async for kept in collection.find(wanted, {"_id": 1})]
    await fencing.check(database, run_id, member_id, where=where)
    reserved = {kept["_id"] for kept in aside if kept["state"] == "reserved"}
    await members.remove_reserved(database, sorted(reserved))
    gone = {kept["_id"] for kept in aside}
    await _set_aside(collection, [kept for kept in aside if kept["_id"] not in reserved])
    returned = {
        "$set": {"state": "ready", "queued": True, "pending": True},
        "$unset": {"taken_by": "", "taken_for": "", "trained_by": ""},
    }
    for kept in pending:
        if kept["_id"] not in gone and kept["state"] in _CONSUMED:
            still = {"_id": kept["_id"], "state": {"$in": _CONSUMED}, "taken_by": kept.get("taken_by")}
            await collection.update_one(still, returned)
    for some in in_slices(evaluations):
        await collection.update_many(
            {"_id": {"$in": some}, "state": "open"}, {"$set": {"state": "aside", "member_id": ""}}
        )


async def _touched_by(database: Any, run_id: str, group_ids: Sequence[str], void: set[int]) -> set[str]:
    """Return the groups of which a scored or running record has a token of a void version."""
    if not void:
        return set()
    found: set[str] = set()
    for some in in_slices(group_ids):
        wanted, _ = queries.records_of(run_id, some)
        found_records = database["records"].find(wanted, {"group_id": 1, "outcome": 1})
        of_group = {kept["_id"]: kept["group_id"] async for kept in found_records if kept["outcome"] in _TRAINABLE}
        for ids in in_slices(list(of_group)):
            wanted, _ = queries.interactions(ids)
            fields = {"record_id": 1, "versions": 1}
            async for call in database["interactions"].find(wanted, fields):
                if any(int(version) in void for version, _ in call["versions"]):
                    found.add(of_group[call["record_id"]])
    return found


async def _set_aside(collection: Any, groups: Sequence[Document]) -> None:
    """Set groups aside, and let each position come again once, with the tries from before its first void group."""
    by_index = sorted(groups, key=lambda kept: (int(kept["index"]), int(kept["tries"]), kept["order"]))
    for _, of_position in itertools.groupby(by_index, key=lambda kept: int(kept["index"])):
        several = list(of_position)
        tries = int(several[0]["tries"])
        for kept in several:
            change: Document = {"state": "aside", "queued": False, "pending": False, "member_id": ""}
            # A position that was given to a later group comes again with that one.
            if kept.get("again") != "given":
                change |= {"again": "released", "again_tries": tries, "again_always": True}
            still = {"_id": kept["_id"], "state": {"$ne": "aside"}, "taken_by": kept.get("taken_by")}
            await collection.update_one(still, {"$set": change})


async def _cancel_records(database: Any, run_id: str) -> None:
    """End the running records of groups that no live member has."""
    wanted, _ = queries.running_records(run_id)
    running = [kept async for kept in database["records"].find(wanted, {"group_id": 1})]
    # Members after records, because the member of a record that was found may have just joined.
    wanted, _ = queries.held_groups(run_id, await members.live(database, run_id))
    held = {kept["id"] async for kept in database["groups"].find(wanted, {"id": 1})}
    await members.cancel(database, [kept["_id"] for kept in running if kept["group_id"] not in held], "resumed")


async def next_index(database: Any, run_id: str, step: int) -> int:
    """Return one more than the highest position that live steps up to `step` consumed."""
    wanted = {"run_id": run_id, "voided": False, "step": {"$lte": step}}
    names = [f"{run_id}/{group}" async for kept in database["steps"].find(wanted) for group in kept["groups"]]
    found = 0
    async for kept in _found_each(database["groups"], names):
        found = max(found, int(kept["index"]) + 1)
    return found


async def _found_each(collection: Any, ids: list[str]) -> AsyncIterator[Document]:
    for some in in_slices(ids):
        async for kept in collection.find({"_id": {"$in": some}}):
            yield kept
