"""The step of a run's trainer in a database: its document, the groups that it trained, and the room that they leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentrl_core.errors import StoreError
from agentrl_mongo.connection import DUPLICATE
from agentrl_mongo.writing import inserted

if TYPE_CHECKING:
    from agentrl_mongo.documents import Document

_OVER = ["trained", "aside"]


async def add_step(database: Any, step: Document, *, where: str) -> None:
    """Record a step and mark its groups as trained.

    The step comes first, and the groups last: if this process ends in between, they still count for the admission, so
    no more groups start than may, and the next resumption marks them.
    """
    run_id = step["run_id"]
    keys = {"_id": {"$in": [f"{run_id}/{group}" for group in step["groups"]]}}
    await _check_groups(database, step, keys, where=where)
    if not await inserted(database["steps"], step):
        raise StoreError(f"{where}: cannot add step {step['step']} of run '{run_id}': {DUPLICATE}")
    # With a new revision, so that a claimer that has counted the groups before begins again.
    change = {"$set": {"trained_steps": step["step"], "replaced": {}}, "$inc": {"revision": 1}}
    await database["runs"].update_one({"_id": run_id}, change)
    trained = {"state": "trained", "queued": False, "pending": False, "trained_by": step["_id"]}
    await database["groups"].update_many({**keys, "state": {"$nin": _OVER}}, {"$set": trained})
    try:
        await _check_groups(database, step, keys, where=where)
    except StoreError:
        # Another trainer was faster by a moment.
        await database["steps"].update_one({"_id": step["_id"]}, {"$set": {"voided": True}})
        raise


async def _check_groups(database: Any, step: Document, keys: Document, *, where: str) -> None:
    """Raise `StoreError` if a group of a step was trained by another step or set aside."""
    over = {**keys, "state": {"$in": _OVER}, "trained_by": {"$ne": step["_id"]}}
    kept = await database["groups"].find_one(over, {"id": 1, "state": 1})
    if kept is not None:
        raise StoreError(
            f"{where}: cannot add step {step['step']} of run '{step['run_id']}': its group {kept['id']} is "
            f"{kept['state']} already, so another trainer has continued the run; end one of the two"
        )
