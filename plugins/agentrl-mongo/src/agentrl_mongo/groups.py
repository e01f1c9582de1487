"""The queue of training groups: taking them, and what a resumed run has to sample again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.group_queue import next_groups
from agentrl_core.errors import StoreError
from agentrl_mongo import queries

if TYPE_CHECKING:
    from agentrl_core.api.group_queue import OvertakeLimits


@attrs.frozen
class WaitingGroup:
    """A group of the queue."""

    key: str
    id: str
    task_id: str
    index: int
    version: int
    ready: bool

    @classmethod
    def of(cls, kept: dict[str, Any]) -> WaitingGroup:
        """Read a document of the collection `groups`."""
        number = {name: int(kept[name]) for name in ("index", "version")}
        return cls(
            kept["_id"], kept["id"], kept["task_id"], number["index"], number["version"], kept["state"] == "ready"
        )


@attrs.define
class Taker:
    """One call of `take_groups`, which may look at the queue several times."""

    name: str
    marked: list[str] = attrs.field(factory=list)
    """Keys of the groups that it may have marked as taken."""


async def take(
    database: Any, run_id: str, count: int, ahead: OvertakeLimits | None, *, taker: Taker, where: str
) -> list[WaitingGroup] | None:
    """Mark the next groups of the queue as taken and return them; None while the caller must wait.

    Each group changes its state once, by compare-and-set. Another taker may be faster for some of the chosen groups;
    then all are given back.
    """
    # The call before this one may have lost its connection on the way.
    await give_back(database, taker)
    run = await database["runs"].find_one({"_id": run_id}, {"sampling_closed": 1})
    if run is None:
        raise StoreError(f"{where}: there is no run '{run_id}' in this database")
    wanted, order = queries.queue(run_id)
    queue = [WaitingGroup.of(kept) async for kept in database["groups"].find(wanted, sort=order)]
    taken = next_groups(queue, count, ahead)
    # After the end of sampling no open group can become ready, so there is nothing to wait for.
    if run["sampling_closed"] and taken is None:
        taken = [group for group in queue if group.ready][:count]
    # In the order of submission, so that of several takers the one with the first group gets all.
    for group in taken or ():
        taker.marked.append(group.key)
        expected = {"_id": group.key, "state": "ready"}
        change = {"$set": {"state": "taken", "queued": False, "taken_by": taker.name}}
        if await database["groups"].find_one_and_update(expected, change) is None:
            await give_back(database, taker)
            return None
    return taken


async def give_back(database: Any, taker: Taker) -> None:
    """Make the groups ready again that `taker` has marked."""
    change = {"$set": {"state": "ready", "queued": True}, "$unset": {"taken_by": ""}}
    for key in taker.marked:
        await database["groups"].update_one({"_id": key, "state": "taken", "taken_by": taker.name}, change)
    taker.marked.clear()


def _later(run_id: str, step: int) -> dict[str, Any]:
    return {"run_id": run_id, "step": {"$gt": step}, "voided": False}


async def count_after(database: Any, run_id: str, step: int) -> int:
    """Return how many steps `void_after` will void."""
    return int(await database["steps"].count_documents(_later(run_id, step)))


async def void_after(database: Any, run_id: str, step: int) -> None:
    """Void the steps after `step` and set their groups and all running records aside.

    Every write can be repeated: if the server or this process ends in between, the next resumption completes it.
    """
    await database["steps"].update_many(_later(run_id, step), {"$set": {"voided": True}})
    live = database["steps"].find({"run_id": run_id, "voided": False}, {"groups": 1})
    consumed = {group async for kept in live for group in kept["groups"]}
    # All other groups, also taken ones whose step was voided or never recorded, are sampled again.
    wanted, _ = queries.groups_in(run_id, ["open", "ready", "taken"])
    others = [kept["_id"] async for kept in database["groups"].find(wanted, {"id": 1}) if kept["id"] not in consumed]
    await _update_each(database["groups"], others, {"$set": {"state": "aside", "queued": False}})
    wanted, _ = queries.running_records(run_id)
    running = [kept["_id"] async for kept in database["records"].find(wanted, {"_id": 1})]
    # Sessions before records: the next resumption looks for running records only.
    await _update_each(database["sessions"], running, {"$set": {"state": "closed"}})
    ended = {"outcome": "cancelled", "reason": "resumed", "detail": "the process that ran it ended first"}
    await database["records"].update_many(wanted, {"$set": ended})
    await database["runs"].update_one({"_id": run_id}, {"$set": {"sampling_closed": False}})


async def left(database: Any, run_id: str, step: int) -> tuple[int, dict[int, int]]:
    """Return the next submission index, and the earlier ones that no live step up to `step` consumed.

    Each of those comes with the number of its groups that were dropped. A dropped group counts only if it was submitted
    before the last live step published its version.
    """
    wanted = {"run_id": run_id, "voided": False, "step": {"$lte": step}}
    live = [kept async for kept in database["steps"].find(wanted, {"groups": 1, "version": 1})]
    names = [f"{run_id}/{group}" for kept in live for group in kept["groups"]]
    consumed = {int(kept["index"]) async for kept in _found_each(database["groups"], names)}
    next_index = max(consumed, default=-1) + 1
    newest = max((kept["version"] for kept in live), default=0)
    found: dict[int, int] = {}
    wanted, _ = queries.training_groups_below(run_id, next_index)
    async for kept in database["groups"].find(wanted, {"index": 1, "state": 1, "version": 1}):
        if (index := int(kept["index"])) not in consumed:
            dropped = kept["state"] == "dropped" and kept["version"] < newest
            found[index] = found.get(index, 0) + dropped
    return next_index, found


_AT_ONCE = 1000
"""Most ids in one query: a command has at most 48 MB."""


async def _update_each(collection: Any, ids: list[str], change: dict[str, Any]) -> None:
    for start in range(0, len(ids), _AT_ONCE):
        await collection.update_many({"_id": {"$in": ids[start : start + _AT_ONCE]}}, change)


async def _found_each(collection: Any, ids: list[str]) -> Any:
    for start in range(0, len(ids), _AT_ONCE):
        async for kept in collection.find({"_id": {"$in": ids[start : start + _AT_ONCE]}}):
            yield kept
