"""Going on from an earlier step in a SQLite store: the groups that keep their work, and those that come again."""

from __future__ import annotations

import json
import sqlite3
from typing import TypeAlias

from agentrl_core.stores.sqlite_members import cancel_running
from agentrl_core.stores.sqlite_rows import names_from

CONSUMED_INDEX = """
    SELECT max(groups.idx) FROM steps, json_each(steps.groups) AS consumed, groups
    WHERE steps.run_id = ? AND steps.voided = 0 AND steps.step <= ?
    AND groups.run_id = steps.run_id AND groups.id = consumed.value
"""
"""Find the highest position that a live step consumed."""

WHATEVER_TRIES = 2
"""Value of `turns.released` for a position that comes again whatever its tries: a person asked for it, or its group was
set aside without a fault of its own. 1 is a position that comes again within its tries, 0 one that waits."""

_Found: TypeAlias = "tuple[str, int, int, int, str, int]"


def void_steps(db: sqlite3.Connection, run_id: str, step: int) -> int:
    """Do the work of `Store.void_after` in the caller's transaction."""
    voided = db.execute(
        "UPDATE steps SET voided = 1 WHERE run_id = ? AND step > ? AND voided = 0 RETURNING groups", (run_id, step)
    ).fetchall()
    db.execute("UPDATE versions SET voided = 1 WHERE run_id = ? AND step > ?", (run_id, step))
    versions = {
        version
        for (version,) in db.execute(
            "SELECT version FROM versions WHERE run_id = ?1 AND voided UNION "
            "SELECT version FROM steps WHERE run_id = ?1 AND voided",
            (run_id,),
        )
    }
    undone = json.dumps([name for (groups,) in voided for name in names_from(groups)])
    # Without the trained groups of live steps and the evaluations that have ended, of which a long run has very many.
    found: list[_Found] = db.execute(
        "SELECT id, idx, tries, version, state, is_eval FROM groups WHERE run_id = ?1 AND "
        "CASE WHEN is_eval THEN state = 'open' "
        "ELSE state IN ('reserved', 'open', 'ready', 'taken', 'dropped', 'dead') "
        "OR state = 'trained' AND id IN (SELECT value FROM json_each(?2)) END",
        (run_id, undone),
    ).fetchall()
    aside = []
    for group in found:
        name, _, _, version, state, is_eval = group
        # The trainer that asked for an evaluation is gone.
        if is_eval or version in versions or _has_tokens(db, run_id, name, state, versions):
            aside.append(group)
        elif state in ("taken", "trained"):
            db.execute("UPDATE groups SET state = 'ready' WHERE run_id = ? AND id = ?", (run_id, name))
    _set_aside(db, run_id, aside)
    cancel_running(db, run_id, "", reason="resumed", detail="the process that ran it ended first")
    db.execute("UPDATE runs SET sampling_closed = 0, admitted_steps = -1, replaced = 0 WHERE id = ?", (run_id,))
    return len(voided)


def _set_aside(db: sqlite3.Connection, run_id: str, groups: list[_Found]) -> None:
    """Mark groups as aside, and add their positions to those that come again, with the tries before them."""
    key = "WHERE run_id = ? AND id = ?"
    for name, index, tries, _, state, is_eval in groups:
        if state == "reserved":
            db.execute(f"DELETE FROM groups {key}", (run_id, name))  # noqa: S608 - a constant
            continue
        db.execute(f"UPDATE groups SET state = 'aside', member_id = '' {key}", (run_id, name))  # noqa: S608 - a constant
        if not is_eval:
            # Several groups of one position may be void; the first of them has the tries that count.
            db.execute(
                "INSERT INTO turns VALUES (?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET tries = min(tries, excluded.tries), released = excluded.released",
                (run_id, index, tries, WHATEVER_TRIES),
            )


def _has_tokens(db: sqlite3.Connection, run_id: str, group_id: str, state: str, versions: set[int]) -> bool:
    """Return whether one of the versions sampled a token of a group's scored or running records."""
    if not versions or state in ("dropped", "dead", "reserved"):
        return False
    query = """
        SELECT DISTINCT json_extract(spans.value, '$[0]')
        FROM records JOIN interactions ON record_id = records.id, json_each(interactions.versions) AS spans
        WHERE records.run_id = ? AND group_id = ? AND outcome IN ('scored', 'running')
    """
    return any(version in versions for (version,) in db.execute(query, (run_id, group_id)))
