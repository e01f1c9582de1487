"""Filters of the store's queries; the tests ask the server whether each follows an index."""

from __future__ import annotations

from typing import Any, TypeAlias

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


def scored_records(run_id: str, group_ids: list[str]) -> Query:
    """Scored records of groups."""
    return {"run_id": run_id, "outcome": "scored", "group_id": {"$in": group_ids}}, []


def running_records(run_id: str) -> Query:
    """Records that have not ended."""
    return {"run_id": run_id, "outcome": "running"}, []


def interactions(record_ids: list[str]) -> Query:
    """LLM calls of records, in their order within each record."""
    return {"record_id": {"$in": record_ids}}, [("record_id", 1), ("seq", 1)]


def arrays(record_ids: list[str]) -> Query:
    """Arrays of the LLM calls of records."""
    return {"record_id": {"$in": record_ids}}, []


def sessions(run_id: str) -> Query:
    """Sessions in the order in which they were opened."""
    return {"run_id": run_id}, [("opened_at", 1), ("order", 1)]


def steps(run_id: str) -> Query:
    """Steps in the order in which they were made."""
    return {"run_id": run_id}, [("order", 1)]


def queue(run_id: str) -> Query:
    """Training groups that wait to be taken, open or ready, in the order of submission.

    Filters by `queued` and not by state: a group whose state changed during the query might otherwise move within the
    index and be missed.
    """
    return {"run_id": run_id, "queued": True}, [("version", 1), ("index", 1)]


def groups_in(run_id: str, states: list[str]) -> Query:
    """Groups in some states."""
    return {"run_id": run_id, "state": {"$in": states}}, []


def training_groups_below(run_id: str, index: int) -> Query:
    """Training groups with a smaller submission index."""
    return {"run_id": run_id, "is_eval": False, "index": {"$lt": index}}, []
