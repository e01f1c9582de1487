"""Upgrade of a database of layout 1, which had no members: groups and positions get what claims need.

Each document is changed once, and only if it lacks the new fields, so several processes may do this at the same time,
and one that dies leaves the rest to the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentrl_mongo import queries
from agentrl_mongo.documents import NEW_RUN

if TYPE_CHECKING:
    from agentrl_mongo.documents import Document

_PENDING = ("open", "ready", "taken")


async def from_1(database: Any) -> None:
    """Give the runs of a database the fields of layout 2."""
    async for run in database["runs"].find({}, {"_id": 1}):
        next_index = await _upgrade_groups(database, run["_id"])
        wanted, order = queries.last_step(run["_id"])
        step = await database["steps"].find_one(wanted, {"step": 1}, sort=order)
        fields = NEW_RUN | {"next_index": next_index, "trained_steps": 0 if step is None else int(step["step"])}
        await database["runs"].update_one({"_id": run["_id"], "revision": {"$exists": False}}, {"$set": fields})


async def _upgrade_groups(database: Any, run_id: str) -> int:
    """Give the groups of a run the new fields; return the position after the last one that was sampled."""
    live = database["steps"].find({"run_id": run_id, "voided": False}, {"groups": 1})
    consumed = {group async for kept in live for group in kept["groups"]}
    positions: dict[int, list[Document]] = {}
    async for kept in database["groups"].find({"run_id": run_id}, sort=[("order", 1)]):
        state = "trained" if kept["state"] == "taken" and kept["id"] in consumed else kept["state"]
        fields = {
            "member_id": "",
            "claim": "",
            "tries": 0,
            "takeovers": 0,
            "follows": "",
            "task_set": "eval" if kept["is_eval"] else "train",
            "state": state,
            "pending": not kept["is_eval"] and state in _PENDING,
        }
        if kept["is_eval"]:
            await _set(database, kept, fields)
        else:
            positions.setdefault(int(kept["index"]), []).append(kept | fields)
    for groups in positions.values():
        # A position that no group stands for any more; its run knew in memory that it had to come again.
        if not any(kept["pending"] or kept["state"] == "trained" for kept in groups):
            tries = sum(kept["state"] == "dropped" for kept in groups)
            always = groups[-1]["state"] == "aside"
            groups[-1] |= {"again": "released", "again_tries": tries, "again_always": always}
        for kept in groups[:-1]:
            kept["again"] = "given"
        for kept in groups:
            await _set(database, kept, {name: kept[name] for name in _FIELDS if name in kept})
    return 1 + max(positions, default=-1)


_FIELDS = (
    *("member_id", "claim", "tries", "takeovers", "follows", "task_set", "state", "pending"),
    *("again", "again_tries", "again_always"),
)


async def _set(database: Any, kept: Document, fields: Document) -> None:
    expected = {"_id": kept["_id"], "claim": {"$exists": False}}
    await database["groups"].update_one(expected, {"$set": fields})
