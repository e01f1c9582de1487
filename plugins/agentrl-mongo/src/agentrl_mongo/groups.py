"""The queue of training groups that are ready, and groups of evaluations: asking for them, waiting for their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.group_queue import next_groups
from agentrl_core.errors import MemberError
from agentrl_mongo import documents, fencing, queries, rows, sampling_state
from agentrl_mongo.reader import IN_LIST
from agentrl_mongo.writing import in_slices, insert_missing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.api.group_queue import OvertakeLimits
    from agentrl_core.types import Record
    from agentrl_mongo.documents import Document

_RETURNED = {"$set": {"state": "ready", "queued": True}, "$unset": {"taken_by": "", "taken_for": ""}}
_LOOKED_AT = 100
"""Most groups of an evaluation that one look asks for."""


@attrs.frozen(kw_only=True)
class WaitingGroup:
    """A group of the queue."""

    key: str
    id: str
    task_id: str
    index: int
    version: int
    tries: int
    step: int
    """Number of steps done when its version was published."""
    ready: bool


@attrs.define(kw_only=True)
class Taker:
    """One call of `take_groups`, which may look at the queue several times."""

    name: str
    member_id: str = ""
    """Trainer that takes the groups."""
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
    run = await sampling_state.read(database, run_id, where=where)
    queue = await _queue(database, run_id)
    await fencing.check(database, run_id, taker.member_id, where=where)
    # After the queue was read, so that nothing is missing in it.
    if taker.member_id and await _take_back(database, run_id, taker.member_id):
        return await take(database, run_id, count, ahead, taker=taker, where=where)
    taken = next_groups(queue, count, ahead)
    # After the end of sampling no open group can become ready, so there is nothing to wait for.
    if run["sampling_closed"] and taken is None:
        taken = [group for group in queue if group.ready][:count]
    # In the same order for all, so that of several takers the one with the first group gets all.
    for group in taken or ():
        taker.marked.append(group.key)
        expected = {"_id": group.key, "state": "ready"}
        change = {"state": "taken", "queued": False, "taken_by": taker.name, "taken_for": taker.member_id}
        if await database["groups"].find_one_and_update(expected, {"$set": change}) is None:
            await give_back(database, taker)
            return None
    try:
        await fencing.check(database, run_id, taker.member_id, where=where)
    except MemberError:
        await give_back(database, taker)
        raise
    return taken


async def _take_back(database: Any, run_id: str, member_id: str) -> bool:
    """Make groups ready again that a former trainer took after the live one had joined; return whether it took any."""
    wanted, _ = queries.pending_groups(run_id)
    late = {**wanted, "state": "taken", "taken_for": {"$exists": True, "$nin": ["", member_id]}}
    found = await database["groups"].update_many(late, _RETURNED)
    return bool(found.modified_count)


async def _queue(database: Any, run_id: str) -> list[WaitingGroup]:
    wanted, order = queries.queue(run_id)
    found = [kept async for kept in database["groups"].find(wanted, sort=order)]
    steps: dict[int, int] = {}
    for version in {int(kept["version"]) for kept in found}:
        wanted, order = queries.live_versions(run_id, version)
        published = await database["versions"].find_one(wanted, {"step": 1}, sort=order)
        steps[version] = version if published is None else int(published["step"])
    waiting = [
        WaitingGroup(
            key=kept["_id"],
            id=kept["id"],
            task_id=documents.restored(kept["task_id"]),
            index=int(kept["index"]),
            version=int(kept["version"]),
            tries=int(kept["tries"]),
            step=steps[int(kept["version"])],
            ready=kept["state"] == "ready",
        )
        for kept in found
    ]
    # Versions of a resumed run may have the same step.
    return sorted(waiting, key=lambda group: (group.step, group.index))


async def give_back(database: Any, taker: Taker) -> None:
    """Make the groups ready again that `taker` has marked."""
    for key in taker.marked:
        await database["groups"].update_one({"_id": key, "state": "taken", "taken_by": taker.name}, _RETURNED)
    taker.marked.clear()


def evaluation(run_id: str, task_set: str, task_ids: Sequence[str], *, version: int, claimable: bool) -> list[Document]:
    """Return documents of groups that ask for one episode on each task."""
    made = [
        rows.new_group(run_id, task_id=task_id, index=index, size=1, version=version, task_set=task_set, is_eval=True)
        for index, task_id in enumerate(task_ids)
    ]
    return made if claimable else [group | {"state": "aside"} for group in made]


async def ask(database: Any, run_id: str, made: Sequence[Document], *, member_id: str, where: str) -> None:
    """Add groups of an evaluation."""
    await fencing.check(database, run_id, member_id, where=where)
    await insert_missing(database["groups"], made)
    try:
        await fencing.check(database, run_id, member_id, where=where)
    except MemberError:
        for some in in_slices([group["_id"] for group in made]):
            await database["groups"].update_many({"_id": {"$in": some}}, {"$set": {"state": "aside", "member_id": ""}})
        raise


async def have_ended(database: Any, run_id: str, remaining: list[str], *, where: str) -> bool:
    """Return whether all groups have ended, or sampling has; removes groups that have ended from `remaining`."""
    run = await sampling_state.read(database, run_id, where=where)
    while remaining and not run["sampling_closed"]:
        # Few at a time: an evaluation may have thousands of groups, and each end of one wakes the caller.
        keys = [f"{run_id}/{group_id}" for group_id in remaining[:_LOOKED_AT]]
        unfinished = {"_id": {"$in": keys}, "state": {"$in": ["open", "reserved"]}}
        if await database["groups"].find_one(unfinished, {"_id": 1}) is not None:
            return False
        del remaining[:_LOOKED_AT]
    return True


async def last_records(database: Any, run_id: str, group_ids: Sequence[str]) -> list[Record | None]:
    """Return the last record of each group, None for a group without one."""
    found: dict[str, Record] = {}
    for some in in_slices(group_ids):
        wanted, _ = queries.records_of(run_id, some)
        async for kept in database["records"].find(wanted, IN_LIST, sort=[("attempt", 1), ("order", 1)]):
            found[kept["group_id"]] = documents.record_from(kept)
    return [found.get(group_id) for group_id in group_ids]
