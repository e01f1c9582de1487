"""Conversion between documents and what members share: the members themselves, groups, and the run's control."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import attrs

from agentrl_core.api.members import Member
from agentrl_core.api.run_rows import GroupRow, RunControl
from agentrl_mongo import documents

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from agentrl_mongo.documents import Document


def member_to(member: Member) -> Document:
    """Convert a member."""
    what = f"member {member.id}"
    fields = attrs.asdict(member, recurse=False, filter=lambda field, _: field.name not in ("id", "packages", "report"))
    kept = documents.plain(fields, what) | {"_id": member.id, "packages": documents.plain(dict(member.packages), what)}
    return {**kept, "report": documents.plain(dict(member.report), what), "order": documents.next_order()}


def member_of(kept: Document) -> Member:
    """Restore a member."""
    fields = {field.name: documents.restored(kept[field.name]) for field in attrs.fields(Member) if field.name in kept}
    return Member(id=kept["_id"], **fields)


def new_group(
    run_id: str, *, task_id: str, index: int, size: int, version: int, task_set: str, is_eval: bool = False
) -> Document:
    """Return the document of a new group without a member."""
    group_id = uuid.uuid4().hex
    return {
        "_id": f"{run_id}/{group_id}",
        "run_id": run_id,
        "id": group_id,
        "task_id": documents.plain(task_id, f"group {group_id}"),
        "index": index,
        "size": size,
        "version": version,
        "is_eval": is_eval,
        "task_set": task_set,
        "state": "open",
        # True while it waits to be taken, and while it counts for the admission: for training groups only.
        "queued": not is_eval,
        "pending": not is_eval,
        "member_id": "",
        "claim": "",
        "tries": 0,
        "takeovers": 0,
        "follows": "",
        "order": documents.next_order(),
    }


def group_of(kept: Document, live: Collection[str]) -> GroupRow | None:
    """Restore a group, which has no member if its last one is not `live`; None if it was reserved and given up."""
    held_by = kept.get("member_id", "")
    lost = bool(held_by) and held_by not in live
    if kept["state"] == "gone" or (lost and kept["state"] == "reserved"):
        return None
    return GroupRow(
        id=kept["id"],
        task_id=documents.restored(kept["task_id"]),
        index=int(kept["index"]),
        size=int(kept["size"]),
        version=int(kept["version"]),
        is_eval=kept["is_eval"],
        task_set=kept.get("task_set", "eval" if kept["is_eval"] else "train"),
        state=kept["state"],
        member_id="" if lost else held_by,
        tries=int(kept.get("tries", 0)),
        takeovers=int(kept.get("takeovers", 0)) + lost,
    )


def control_of(kept: Document) -> RunControl:
    """Restore what a run's members are to do."""
    return RunControl(
        admitted_steps=int(kept.get("admitted_steps", -1)),
        closed=kept["sampling_closed"],
        wanted=kept.get("wanted", "run"),
        limits={limit["option"]: documents.restored(limit["value"]) for limit in kept.get("limits", ())},
        cancel=tuple(kept.get("cancel", ())),
    )


def limits_to(limits: Mapping[str, int | float]) -> list[Document]:
    """Convert limits; their names are no fields, because they contain dots."""
    return [{"option": name, "value": documents.plain(value, f"limit {name}")} for name, value in limits.items()]
