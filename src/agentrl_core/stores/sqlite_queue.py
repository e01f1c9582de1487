"""SQL queries for the training groups of a SQLite store: the waiting ones, and those that a resumed run repeats."""

from __future__ import annotations

import attrs

QUEUE = """
    SELECT id, state, task_id, idx, version FROM groups
    WHERE run_id = ? AND state IN ('open', 'ready') AND is_eval = 0
    ORDER BY idx
"""
"""Select the training groups of a run that wait to be taken."""

LEFT = """
    WITH
        live AS (SELECT groups, version FROM steps WHERE run_id = ?1 AND voided = 0 AND step <= ?2),
        consumed AS (
            SELECT groups.idx FROM live, json_each(live.groups) AS name, groups
            WHERE groups.run_id = ?1 AND groups.id = name.value
        )
    SELECT idx, sum(state = 'dropped' AND version < (SELECT max(version) FROM live)) FROM groups
    WHERE run_id = ?1 AND is_eval = 0 AND idx < ?3 AND idx NOT IN consumed GROUP BY idx
"""
"""Select the indices that were submitted and not consumed, each with the number of its groups that were dropped.

A dropped group counts only if it was submitted before the last live step published its version.
"""


@attrs.frozen
class WaitingGroup:
    """A row of `QUEUE`."""

    id: str
    state: str
    task_id: str
    index: int
    version: int

    @property
    def ready(self) -> bool:
        """Whether the group may be taken."""
        return self.state == "ready"
