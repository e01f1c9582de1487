"""The step of a run's trainer in a database: its document, the groups that it trained, and the room that they leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentrl_core.errors import StoreError
from agentrl_mongo import fencing, resume
from agentrl_mongo.connection import DUPLICATE
from agentrl_mongo.writing import inserted

if TYPE_CHECKING:
    from agentrl_mongo.documents import Document

_OVER = ["trained", "aside"]


async def add_step(database: Any, step: Document, *, member_id: str, where: str) -> None:
    """Record a step and mark its groups as trained; with `member_id`, only if this member is live.

    The step comes first, and the groups last: if this process ends in between, they still count for the admission, so
    no more groups start than may, and the next resumption marks them.
    """
    run_id, groups = step["run_id"], database["groups"]
    keys = {"_id": {"$in": [f"{run_id}/{group}" for group in step["groups"]]}}
    held = [kept async for kept in groups.find(keys, {"id": 1, "state": 1, "taken_by": 1, "trained_by": 1})]
    # The member after the groups: whoever succeeds a trainer makes its groups ready again, and takes them anew, only
    # after it has ended it. So if this one is live now, `taken_by` is still its own.
    await fencing.check(database, run_id, member_id, where=where)
    for kept in held:
        if kept["state"] in _OVER and kept.get("trained_by") != step["_id"]:
            raise StoreError(
                f"{where}: cannot add step {step['step']} of run '{run_id}': its group {kept['id']} is "
                f"{kept['state']} already, so another trainer has continued the run; end one of the two"
            )
    if not await inserted(database["steps"], step):
        late = {"run_id": run_id, "step": step["step"], "voided": False, "written_by": {"$nin": ["", member_id]}}
        if member_id:  # a former trainer, suspended in between, may be about to take its step back
            await database["steps"].update_one(late, {"$set": {"voided": True}})
        if not member_id or not await inserted(database["steps"], step):
            raise StoreError(f"{where}: cannot add step {step['step']} of run '{run_id}': {DUPLICATE}")
    # With a new revision, so that a claimer that has counted the groups before begins again.
    change = {"$set": {"trained_steps": step["step"], "replaced": {}}, "$inc": {"revision": 1}}
    trained = {"state": "trained", "queued": False, "pending": False, "trained_by": step["_id"]}
    others = {"_id": {"$in": [kept["_id"] for kept in held]}, "trained_by": {"$ne": step["_id"]}}
    try:
        await fencing.change_run(database, run_id, change, member_id=member_id, where=where)
        for state, taken_by in {(kept["state"], kept.get("taken_by")) for kept in held}:
            await groups.update_many({**keys, "state": state, "taken_by": taken_by}, {"$set": trained})
        if await groups.find_one(others, {"_id": 1}) is not None:
            raise fencing.succeeded(run_id, member_id, where=where)
        await fencing.check(database, run_id, member_id, where=where)
    except StoreError:
        await _undo(database, step, member_id)
        raise


async def _undo(database: Any, step: Document, member_id: str) -> None:
    """Take back a step during which its trainer was declared lost; the run is its successor's.

    The step first: whoever resumes the run again after a crash makes the groups of a void step ready.
    """
    run_id = step["run_id"]
    await database["steps"].update_one({"_id": step["_id"]}, {"$set": {"voided": True}})
    ready = {
        "$set": {"state": "ready", "queued": True, "pending": True},
        "$unset": {"taken_by": "", "taken_for": "", "trained_by": ""},
    }
    keys = {"_id": {"$in": [f"{run_id}/{group}" for group in step["groups"]]}}
    await database["groups"].update_many({**keys, "trained_by": step["_id"], "state": "trained"}, ready)
    done = {"$set": {"trained_steps": await resume.live_steps(database, run_id)}, "$inc": {"revision": 1}}
    # A successor counts its own steps.
    await database["runs"].update_one({"_id": run_id} | ({"trainer": member_id} if member_id else {}), done)
