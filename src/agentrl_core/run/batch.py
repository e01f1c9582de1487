"""Collecting the groups that one optimizer step trains, with replacements for groups that the filters drop.

Replacing dropped groups is DAPO's dynamic sampling, `rollout.dynamic_sampling`.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from agentrl_core.api.group_queue import OvertakeLimits
from agentrl_core.batching.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentrl_core.config.schema import RolloutConfig
    from agentrl_core.run.sampling import SamplingSide
    from agentrl_core.training.learner import Learner


class BatchCollector:
    """Collector of the groups of each step; with `rollout.dynamic_sampling` it tops them up to a whole batch.

    The choice of groups does not depend on which of them ends first, so equal seeds give equal batches: each dropped
    group admits the next group in the order of tasks, and a step waits for all groups that were admitted for it.
    """

    def __init__(
        self, sampling: SamplingSide, learner: Learner, config: RolloutConfig, *, notice: Callable[[str], None]
    ) -> None:
        self._sampling, self._learner, self._config, self._notice = sampling, learner, config, notice
        self._totals: Counter[str] = Counter()

    @property
    def totals(self) -> Mapping[str, int]:
        """Number of groups over all steps so far, under `dropped(REASON)` and `topped_up`."""
        return dict(self._totals)

    def collect(self, version: int) -> tuple[Signal, dict[str, float]]:
        """Block until the groups for a step on `version` are there; return their training signal and metrics."""
        wanted = self._config.tasks_per_step
        if not self._config.dynamic_sampling:
            signal, metrics = self._take(wanted, version), {}
        else:
            signal = self._topped_up(wanted, version)
            topped_up = len(signal.sampled) - wanted
            metrics = {"rollout/groups_topped_up": float(topped_up)}
            self._totals["topped_up"] += topped_up
        self._totals.update({f"dropped({reason})": count for reason, count in signal.dropped.items()})
        return signal, metrics

    def _topped_up(self, wanted: int, version: int) -> Signal:
        """Filter each group as it arrives, and sample another one for each that is dropped, up to the limit."""
        limit = math.floor(wanted * self._config.max_oversampling)
        parts: list[Signal] = []
        # One group at a time: the filter must have decided on it before another one may be admitted.
        admitted = wanted
        while len(parts) < admitted:
            part = self._take(1, version, more=admitted - len(parts) - 1)
            parts.append(part)
            if not part.groups and admitted < limit:
                admitted += 1
                self._sampling.scheduler.replace(1)
        signal = Signal.joined(parts)
        if len(signal.groups) < wanted:
            reasons = ", ".join(f"{name} {count}" for name, count in sorted(signal.dropped.items()))
            self._notice(
                f"{admitted} groups were sampled, but only {len(signal.groups)} of the {wanted} that a step needs had "
                f"something to learn from (dropped: {reasons}); the step trains on those. To fill the step, raise "
                "rollout.max_oversampling or rollout.group_size, or mix easier and harder tasks"
            )
        return signal

    def _take(self, count: int, version: int, *, more: int = 0) -> Signal:
        ahead = OvertakeLimits(
            version=version,
            max_lag=self._config.max_head_offpolicyness,
            per_step=self._config.tasks_per_step,
            more=more,
        )
        return self._learner.training_signal(self._sampling.take_groups(count, ahead))
