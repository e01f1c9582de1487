"""Claims of groups: taking over groups without a member, new groups within the admission, and a group's end.

Who has a group is a field of its document, so every change of it is one compare-and-set. See `sampling_state` for new
groups, which also move the run's position.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.claims import GroupClaim
from agentrl_core.errors import ClaimLostError, StoreError
from agentrl_mongo import documents, members, queries, rows, sampling_state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentrl_core.api.claims import Admission
    from agentrl_mongo.documents import Document
    from agentrl_mongo.sampling_state import SamplingState

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.005, 0.2
"""Longest pause before the first and the last repetition of a claim that met another one."""


@attrs.define(kw_only=True)
class Claiming:
    """One call of `claim_groups`, which may begin several times."""

    run_id: str
    member_id: str
    count: int
    admission: Admission
    size: int
    version: int
    task_at: Callable[[int], str] | None
    where: str
    token: str = attrs.field(factory=lambda: uuid.uuid4().hex)
    """Stands in every group that the call claims, so that a repeated call finds what it has."""
    has_begun: bool = False
    has_ended_groups: bool = False
    """Whether a group is dead that had lost too many members."""


async def claim(database: Any, call: Claiming, completed: dict[str, str]) -> list[GroupClaim]:
    """Claim groups for a live member; begins again whenever another process claims or admits at the same time."""
    tries = 0
    while (claimed := await _try(database, call, completed)) is None:
        await asyncio.sleep(random.uniform(0, min(_LAST_PAUSE_S, _FIRST_PAUSE_S * 2**tries)))  # noqa: S311 - jitter
        tries += 1
    return claimed


async def _try(database: Any, call: Claiming, completed: dict[str, str]) -> list[GroupClaim] | None:
    """Claim groups; None if another process was faster, and groups that are claimed already stay so."""
    # The run first: if anything that is read below changes so that fewer groups may start, its revision has changed.
    state = await sampling_state.settled(database, call.run_id, completed, where=call.where)
    live = await _live_with(database, call)
    mine = await held(database, call) if call.has_begun else []
    call.has_begun = True
    sampling = state.admitted_steps >= 0 and not state.closed
    mine += await _taken_over(database, call, live, call.count - len(mine), training=sampling)
    new: list[Document] = []
    if sampling and len(mine) < call.count:
        new = await _new_groups(database, call, state, call.count - len(mine))
        next_index = 1 + max((group["index"] for group in new), default=-1)
        plan = {"id": uuid.uuid4().hex, "groups": new}
        if new and not await sampling_state.commit(
            database, call.run_id, state, plan, next_index=max(state.next_index, next_index), completed=completed
        ):
            return None
    # The member may have been declared lost meanwhile. Then it has none of these groups, whoever gets them.
    await _live_with(database, call)
    return await _claims_of(database, call, mine) + [_claim_of(kept, {}) for kept in new]


async def _live_with(database: Any, call: Claiming) -> list[str]:
    """Return the live members; raise `ClaimLostError` if the call's member is not among them."""
    live = await members.live(database, call.run_id)
    if call.member_id not in live:
        raise ClaimLostError(
            f"{call.where}: member {call.member_id} does not take part in run '{call.run_id}' any more; it must join "
            "again"
        )
    return live


async def held(database: Any, call: Claiming) -> list[Document]:
    """Return the groups that a call has claimed."""
    wanted, _ = queries.held_groups(call.run_id, [call.member_id])
    return [kept async for kept in database["groups"].find({**wanted, "claim": call.token})]


async def give_back(database: Any, call: Claiming) -> None:
    """Release all groups that a cancelled call has claimed; nobody was told of them."""
    for kept in await held(database, call):
        await release(database, _claim_of(kept, {}))


async def _taken_over(
    database: Any, call: Claiming, live: Sequence[str], room: int, *, training: bool
) -> list[Document]:
    """Claim up to `room` groups without a live member: evaluations, then training groups by index."""
    if room <= 0:
        return []
    await members.free_groups(database, call.run_id, live)
    taken: list[Document] = []
    for is_eval in (True, False) if training else (True,):
        # Each group that is found is claimed or ended, by this call or by another one, so this comes to an end.
        while len(taken) < room and (found := await _free(database, call.run_id, room - len(taken), is_eval=is_eval)):
            taken += [kept for kept in found if await _take_over(database, call, kept)]
    return taken


async def _free(database: Any, run_id: str, count: int, *, is_eval: bool) -> list[Document]:
    """Return the first groups that no member has."""
    wanted, order = queries.free_groups(run_id, is_eval=is_eval)
    found = [kept async for kept in database["groups"].find(wanted, sort=order, limit=count if is_eval else 0)]
    # Training groups come again in another order than that in which they were added; they are few.
    return found if is_eval else sorted(found, key=lambda kept: kept["index"])[:count]


async def _take_over(database: Any, call: Claiming, kept: Document) -> bool:
    """Claim a group without a member, or end it if it lost too many; return whether it was claimed."""
    expected = {"_id": kept["_id"], "state": "open", "member_id": "", "takeovers": kept["takeovers"]}
    dead = int(kept["takeovers"]) > call.admission.max_takeovers
    if dead:
        change: Document = {"state": "dead", "queued": False, "pending": False}
    else:
        change = {"member_id": call.member_id, "claim": call.token}
    if await database["groups"].find_one_and_update(expected, {"$set": change}, {"_id": 1}) is None:
        return False
    kept |= change
    call.has_ended_groups |= dead
    return not dead


async def _new_groups(database: Any, call: Claiming, state: SamplingState, room: int) -> list[Document]:
    """Return documents for up to `room` groups that may start now."""
    wanted, _ = queries.pending_groups(call.run_id)
    allowed = call.admission.groups(
        admitted_steps=state.admitted_steps,
        trained_steps=state.trained_steps,
        pending=await database["groups"].count_documents(wanted),
        replaced=state.replaced,
    )
    if (number := min(room, allowed)) <= 0:
        return []
    shared: Document = {"size": call.size, "version": call.version, "task_set": "train"}
    if call.task_at is None:
        new = [rows.new_group(call.run_id, task_id="", index=-1, **shared) for _ in range(number)]
        return [kept | {"state": "reserved", "queued": False, **_owner(call)} for kept in new]
    wanted, order = queries.positions_again(call.run_id)
    again = [kept async for kept in database["groups"].find(wanted, sort=order)]
    turns = [
        (int(kept["index"]), int(kept["again_tries"]), kept["_id"])
        for kept in again
        if kept.get("again_always") or int(kept["again_tries"]) <= call.admission.requeue
    ][:number]
    turns += [(state.next_index + offset, 0, "") for offset in range(number - len(turns))]
    return [
        rows.new_group(call.run_id, task_id=call.task_at(index), index=index, **shared)
        | {"tries": tries, "follows": follows, **_owner(call)}
        for index, tries, follows in turns
    ]


def _owner(call: Claiming) -> Document:
    return {"member_id": call.member_id, "claim": call.token}


async def _claims_of(database: Any, call: Claiming, taken: Sequence[Document]) -> list[GroupClaim]:
    """Return the claims of groups that may have scored records of earlier members."""
    if not taken:
        return []
    wanted, _ = queries.records_of(call.run_id, [kept["id"] for kept in taken], "scored")
    scored: dict[str, dict[int, str]] = {}
    async for record in database["records"].find(wanted, {"group_id": 1, "sample_index": 1}):
        scored.setdefault(record["group_id"], {})[int(record["sample_index"])] = record["_id"]
    return [_claim_of(kept, scored.get(kept["id"], {})) for kept in taken]


def _claim_of(kept: Document, scored: dict[int, str]) -> GroupClaim:
    return GroupClaim(
        group_id=kept["id"],
        member_id=kept["member_id"],
        index=int(kept["index"]),
        task_id=documents.restored(kept["task_id"]),
        size=int(kept["size"]),
        version=int(kept["version"]),
        tries=int(kept["tries"]),
        takeovers=int(kept["takeovers"]),
        is_eval=kept["is_eval"],
        task_set=kept["task_set"],
        scored=scored,
    )


async def check(database: Any, run_id: str, group_id: str, member_id: str, *, where: str) -> None:
    """Raise `ClaimLostError` unless a live member has a group.

    Two documents are read, so the claim may be lost a moment later. A record is therefore announced between two
    checks: if the second one passes, whoever ends the claim finds the record and cancels it.
    """
    wanted = {"_id": f"{run_id}/{group_id}", "state": "open", "member_id": member_id}
    if (
        await members.run_of(database, member_id) != run_id
        or await database["groups"].find_one(wanted, {"_id": 1}) is None
    ):
        raise _lost(group_id, member_id, where=where)


async def _run_of(database: Any, claimed: GroupClaim, *, where: str) -> str:
    run_id = await members.run_of(database, claimed.member_id)
    if run_id is None:
        raise _lost(claimed.group_id, claimed.member_id, where=where)
    return run_id


async def begin(
    database: Any, claimed: GroupClaim, task_id: str, completed: dict[str, str], *, token: str, where: str
) -> GroupClaim:
    """Give a reserved group its task and the next position. `token` tells a repeated call its own write."""
    run_id = await _run_of(database, claimed, where=where)
    key, plain = f"{run_id}/{claimed.group_id}", documents.plain(task_id, f"group {claimed.group_id}")
    while True:
        state = await sampling_state.settled(database, run_id, completed, where=where)
        kept = await database["groups"].find_one({"_id": key, "member_id": claimed.member_id})
        if kept is not None and kept.get("begun_by") == token:
            return _claim_of(kept, {})
        if kept is None or kept["state"] != "reserved":
            raise _lost(claimed.group_id, claimed.member_id, where=where)
        begun = {"_id": key, "index": state.next_index, "task_id": plain, "begun_by": token}
        plan = {"id": uuid.uuid4().hex, "groups": [], "begun": begun}
        await sampling_state.commit(database, run_id, state, plan, next_index=state.next_index + 1, completed=completed)


async def release(database: Any, claimed: GroupClaim) -> None:
    """Give up a claim; does nothing if it is lost."""
    if (run_id := await members.run_of(database, claimed.member_id)) is None:
        return
    mine = {"_id": f"{run_id}/{claimed.group_id}", "member_id": claimed.member_id}
    kept = await database["groups"].find_one_and_update(
        {**mine, "state": "open"}, {"$set": {"member_id": "", "claim": ""}}, {"_id": 1}
    )
    if kept is None and await database["groups"].find_one({**mine, "state": "reserved"}, {"_id": 1}) is not None:
        await members.remove_reserved(database, [mine["_id"]])


async def finish(database: Any, claimed: GroupClaim, *, usable: bool, requeue: int, token: str, where: str) -> bool:
    """End a claimed group; return whether its position comes again. `token` tells a repeated call its own write."""
    run_id = await _run_of(database, claimed, where=where)
    key = f"{run_id}/{claimed.group_id}"
    again = not usable and not claimed.is_eval and claimed.tries < requeue
    change: Document = {"member_id": "", "finished_by": claimed.member_id, "finish": token}
    change |= {"state": "ready"} if usable else {"state": "dropped", "queued": False, "pending": False}
    if again:
        # In the same write: the position is never without a group that is there for it.
        change |= {"again": "waiting", "again_tries": claimed.tries + 1}
    mine = {"_id": key, "state": "open", "member_id": claimed.member_id}
    ended = await database["groups"].find_one_and_update(mine, {"$set": change}, {"_id": 1})
    if ended is None and await database["groups"].find_one({"_id": key, "finish": token}, {"_id": 1}) is None:
        raise _lost(claimed.group_id, claimed.member_id, where=where)
    if claimed.takeovers:
        # Left by an earlier member that died after it announced a record, before it noticed the loss of its claim.
        await members.cancel_records_of(database, run_id, {claimed.group_id: "lost"})
    return again


async def requeue(
    database: Any, run_id: str, group_id: str, completed: dict[str, str], *, token: str, where: str
) -> bool:
    """Release the position of a dropped or dead group, whatever its tries; return False if it may not come again.

    `token` tells a repeated call its own write.
    """
    # Once the plan of the last claim is complete, a group whose position has a later group says so itself.
    await sampling_state.settled(database, run_id, completed, where=where)
    key = f"{run_id}/{group_id}"
    kept = await database["groups"].find_one({"_id": key}, {"state": 1, "tries": 1, "requeue": 1})
    if kept is None or kept["state"] == "gone":
        raise StoreError(f"{where}: there is no group {group_id} in run '{run_id}'")
    if kept.get("requeue") == token:
        return True
    unusable = {"_id": key, "state": {"$in": ["dropped", "dead"]}, "is_eval": False}
    unasked = {"again": {"$ne": "given"}, "again_always": {"$ne": True}}
    change = {"again": "released", "again_tries": int(kept["tries"]) + 1, "again_always": True, "requeue": token}
    return await database["groups"].find_one_and_update(unusable | unasked, {"$set": change}, {"_id": 1}) is not None


def _lost(group_id: str, member_id: str, *, where: str) -> ClaimLostError:
    return ClaimLostError(
        f"{where}: member {member_id} does not have group {group_id} any more; its work on the group is void, and "
        "another member samples it"
    )
