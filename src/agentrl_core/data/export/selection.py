"""Choose the records that an export takes: by reward, group and outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from agentrl_core.types import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.api.stores import StepRow
    from agentrl_core.types import Record


@attrs.frozen(kw_only=True)
class Selection:
    """Criteria for the records to export."""

    min_reward: float | None = None
    """Smallest reward; None for any."""
    best_of_group: int | None = None
    """Largest number of records per group: those with the highest rewards, the first ones if rewards are equal."""
    evaluations: bool = False
    """Whether records of evaluations are included; training then sees the tasks of the evaluations."""

    def choose(self, records: Sequence[Record]) -> list[Record]:
        """Return the scored records that meet the criteria, in their order."""
        least = float("-inf") if self.min_reward is None else self.min_reward
        passing = [
            record
            for record in records
            if record.outcome is Outcome.SCORED
            and record.reward is not None
            and record.reward >= least
            and (self.evaluations or not record.is_eval)
        ]
        if self.best_of_group is None:
            return passing
        groups: dict[str, list[Record]] = {}
        for record in passing:
            groups.setdefault(record.group_id, []).append(record)
        best = {
            record.id for members in groups.values() for record in sorted(members, key=_by_reward)[: self.best_of_group]
        }
        return [record for record in passing if record.id in best]


def taken_again(steps: Sequence[StepRow], records: Sequence[Record]) -> set[str]:
    """Return the ids of those `records` whose groups were taken by voided steps only, whatever filters kept of them.

    A resumed run has sampled their tasks again, so an export of both would contain the tasks twice.
    """
    voided, live = ({name for step in steps if step.voided == kind for name in step.groups} for kind in (True, False))
    return {record.id for record in records if record.group_id in voided - live}


def _by_reward(record: Record) -> tuple[float, int, int]:
    return -(record.reward or 0.0), record.sample_index, record.attempt
