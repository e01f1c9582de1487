"""The step of a run's trainer in a database: its document, the groups that it trained, and the room that they leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentrl_core.errors import MemberError, StoreError
from agentrl_mongo import members, resume
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
    await _check_member(database, step, member_id, where=where)
    for kept in held:
        if kept["state"] in _OVER and kept.get("trained_by") != step["_id"]:
            raise StoreError(
                f"{where}: cannot add step {step['step']} of run '{run_id}': its group {kept['id']} is "
                f"{kept['state']} already, so another trainer has continued the run; end one of the two"
            )
    if not await inserted(database["steps"], step):
        raise StoreError(f"{where}: cannot add step {step['step']} of run '{run_id}': {DUPLICATE}")
    # With a new revision, so that a claimer that has counted the groups before begins again.
    change = {"$set": {"trained_steps": step["step"], "replaced": {}}, "$inc": {"revision": 1}}
    await database["runs"].update_one({"_id": run_id}, change)
    trained = {"state": "trained", "queued": False, "pending": False, "trained_by": step["_id"]}
    for state, taken_by in {(kept["state"], kept.get("taken_by")) for kept in held}:
        await groups.update_many({**keys, "state": state, "taken_by": taken_by}, {"$set": trained})
    others = {"_id": {"$in": [kept["_id"] for kept in held]}, "trained_by": {"$ne": step["_id"]}}
    try:
        if await groups.find_one(others, {"_id": 1}) is not None:
            raise _succeeded(step, where=where)
        await _check_member(database, step, member_id, where=where)
    except StoreError:
        await _undo(database, step)
        raise


async def _check_member(database: Any, step: Document, member_id: str, *, where: str) -> None:
    """Raise `MemberError` if the trainer that adds a step is not live."""
    if member_id and await members.run_of(database, member_id) != step["run_id"]:
        raise _succeeded(step, where=where)


def _succeeded(step: Document, *, where: str) -> MemberError:
    return MemberError(
        f"{where}: cannot add step {step['step']} of run '{step['run_id']}': this trainer was declared lost, and "
        "another one may have continued the run; end this process"
    )


async def _undo(database: Any, step: Document) -> None:
    """Take back a step during which its trainer was declared lost; the run is its successor's.

    The step first: whoever resumes the run again after a crash makes the groups of a void step ready.
    """
    run_id = step["run_id"]
    await database["steps"].update_one({"_id": step["_id"]}, {"$set": {"voided": True}})
    ready = {"$set": {"state": "ready", "queued": True, "pending": True}, "$unset": {"taken_by": "", "trained_by": ""}}
    keys = {"_id": {"$in": [f"{run_id}/{group}" for group in step["groups"]]}}
    await database["groups"].update_many({**keys, "trained_by": step["_id"], "state": "trained"}, ready)
    done = {"$set": {"trained_steps": await resume.live_steps(database, run_id)}, "$inc": {"revision": 1}}
    await database["runs"].update_one({"_id": run_id}, done)
