"""Fence around the writes of a trainer: one that was declared lost changes nothing of a run that another continues.

The run's document names its trainer, so a change of that document is one compare-and-set. A write to another document
stands between two checks of the member: the second one stops a trainer that was suspended in between, and what it wrote
is undone, or overruled by its successor. Without a `member_id`, anybody may write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentrl_core.errors import MemberError, StoreError

if TYPE_CHECKING:
    from agentrl_mongo.documents import Document


async def check(database: Any, run_id: str, member_id: str, *, where: str) -> None:
    """Raise `MemberError` unless the member is live in the run."""
    live = {"_id": member_id, "run_id": run_id, "state": "live"}
    if member_id and await database["members"].find_one(live, {"_id": 1}) is None:
        raise succeeded(run_id, member_id, where=where)


async def change_run(
    database: Any, run_id: str, change: Document, *, member_id: str, where: str, only: Document | None = None
) -> bool:
    """Change the document of a run if it is as `only` says, and return whether it is.

    Raises `StoreError` if there is no such run, and `MemberError` unless the member is its live trainer.
    """
    await check(database, run_id, member_id, where=where)
    wanted = {"_id": run_id, **({"trainer": member_id} if member_id else {}), **(only or {})}
    if await database["runs"].find_one_and_update(wanted, change, {"_id": 1}) is not None:
        return True
    kept = await database["runs"].find_one({"_id": run_id}, {"trainer": 1})
    if kept is None:
        raise StoreError(f"{where}: there is no run '{run_id}' in this database")
    if member_id and kept.get("trainer") != member_id:
        raise succeeded(run_id, member_id, where=where)
    return False


async def enter(database: Any, run_id: str, member_id: str, *, where: str) -> None:
    """Make a member that has joined the trainer of its run, in the place of the one before."""
    entered = False
    while not entered:
        kept = await database["runs"].find_one({"_id": run_id}, {"trainer": 1})
        # After that read: a successor that came meanwhile changes what was read.
        await check(database, run_id, member_id, where=where)
        before = {"_id": run_id, "trainer": kept.get("trainer")}
        entered = await database["runs"].find_one_and_update(before, {"$set": {"trainer": member_id}}) is not None


def succeeded(run_id: str, member_id: str, *, where: str) -> MemberError:
    """Return the error of a trainer that may have a successor."""
    return MemberError(
        f"{where}: this trainer (member {member_id}) of run '{run_id}' was declared lost, and another one may have "
        "continued the run; end this process"
    )
