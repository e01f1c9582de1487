"""Filters of the store's queries; the tests ask the server whether each follows an index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

Query: TypeAlias = "tuple[dict[str, Any], list[tuple[str, int]]]"
"""Filter and sort order."""


def runs() -> Query:
    """All runs, the oldest first."""
    return {}, [("created_at", 1), ("order", 1)]


def tasks(run_id: str, task_set: str | None) -> Query:
    """Tasks in the order in which they were added."""
    return {"run_id": run_id} | ({} if task_set is None else {"task_set": task_set}), [("order", 1)]


def records(run_id: str, task_id: str | None, *, is_eval: bool | None) -> Query:
    """Records in the order of their start."""
    given = {"task_id": task_id, "is_eval": is_eval}
    wanted = {name: value for name, value in given.items() if value is not None}
    return {"run_id": run_id, **wanted}, [("started_at", 1), ("order", 1)]


def records_with_prefix(prefix: str) -> Query:
    """Records whose id begins with `prefix`."""
    return {"_id": {"$gte": prefix, "$lt": prefix + chr(0x10FFFF)}}, [("_id", 1)]


def records_of(run_id: str, group_ids: list[str], outcome: str | None = None) -> Query:
    """Records of groups, all or those with one outcome."""
    return {"run_id": run_id, "group_id": {"$in": group_ids}} | ({} if outcome is None else {"outcome": outcome}), []


def running_records(run_id: str) -> Query:
    """Records that have not ended."""
    return {"run_id": run_id, "outcome": "running"}, []


def interactions(record_ids: list[str]) -> Query:
    """LLM calls of records, in their order within each record."""
    return {"record_id": {"$in": record_ids}}, [("record_id", 1), ("seq", 1)]


def tool_calls(record_ids: list[str]) -> Query:
    """Tool calls of records, in their order within each record."""
    return {"record_id": {"$in": record_ids}}, [("record_id", 1), ("seq", 1)]


def arrays(record_ids: list[str]) -> Query:
    """Arrays of the LLM calls, and long contents of the tool calls, of records."""
    return {"record_id": {"$in": record_ids}}, []


def sessions(run_id: str) -> Query:
    """Sessions in the order in which they were opened."""
    return {"run_id": run_id}, [("opened_at", 1), ("order", 1)]


def steps(run_id: str) -> Query:
    """Steps in the order in which they were made."""
    return {"run_id": run_id}, [("order", 1)]


def last_step(run_id: str) -> Query:
    """Live steps, the last one first."""
    return {"run_id": run_id, "voided": False}, [("step", -1)]


def queue(run_id: str) -> Query:
    """Training groups that wait to be taken, open or ready, in the order of submission.

    Filters by `queued` and not by state: a group whose state changed during the query might otherwise move within the
    index and be missed.
    """
    return {"run_id": run_id, "queued": True}, [("version", 1), ("index", 1)]


def groups(run_id: str) -> Query:
    """Groups in the order in which they were added, also reserved groups that were given up."""
    return {"run_id": run_id}, [("order", 1)]


def pending_groups(run_id: str) -> Query:
    """Training groups that are reserved, open, ready or taken; not by state, for the reason that `queue` gives."""
    return {"run_id": run_id, "pending": True}, []


def free_groups(run_id: str, *, is_eval: bool) -> Query:
    """Open groups that no member has, in the order in which they were added."""
    return {"run_id": run_id, "is_eval": is_eval, "state": "open", "member_id": ""}, [("order", 1)]


def held_groups(run_id: str, member_ids: list[str]) -> Query:
    """Open and reserved groups whose last member is one of these; other groups have no member."""
    return {"run_id": run_id, "member_id": {"$in": member_ids}}, []


def abandoned_groups(run_id: str, live: Sequence[str]) -> Query:
    """Open and reserved groups whose member is not among the live ones."""
    return {"run_id": run_id, "member_id": {"$nin": ["", *live]}}, []


def positions_again(run_id: str) -> Query:
    """Groups whose positions may be claimed again now, by position."""
    return {"run_id": run_id, "again": "released"}, [("index", 1)]


def positions_to_repeat(run_id: str, again: list[str]) -> Query:
    """Groups whose positions may be claimed again, now (`released`) or after the next `admit` (`waiting`)."""
    return {"run_id": run_id, "again": {"$in": again}}, []


def open_evaluations(run_id: str) -> Query:
    """Groups of evaluations that are open."""
    return {"run_id": run_id, "is_eval": True, "state": "open"}, []


def ended_groups_of(run_id: str, version: int) -> Query:
    """Groups of a version that do not wait to be taken, in the order of submission."""
    return {"run_id": run_id, "queued": False, "version": version}, [("index", 1)]


def members(run_id: str) -> Query:
    """Members in the order in which they joined."""
    return {"run_id": run_id}, [("order", 1)]


def live_members(run_id: str) -> Query:
    """Members that are live, in the order in which they joined."""
    return {"run_id": run_id, "state": "live"}, [("order", 1)]


def live_versions(run_id: str, most: int) -> Query:
    """Publications of weights that are not void, up to a version, the newest first."""
    return {"run_id": run_id, "version": {"$lte": most}, "voided": {"$ne": True}}, [("version", -1)]
