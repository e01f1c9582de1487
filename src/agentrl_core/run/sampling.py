"""Sampling as the training loop sees it: the few operations that it needs, and the groups of a step taken by them.

This module and the loop import nothing of the rollout, the gateway and the engines. `in_process.py` samples in the
trainer's own process.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import TYPE_CHECKING, Protocol

import attrs

from agentrl_core.api.group_queue import OvertakeLimits
from agentrl_core.batching.credit import is_trained
from agentrl_core.batching.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentrl_core.api.weights import Publication, WeightSource
    from agentrl_core.config.sampling_sections import RolloutConfig
    from agentrl_core.run.group_ranking import GroupRanking
    from agentrl_core.run.versions import TokenAges
    from agentrl_core.training.learner import Learner
    from agentrl_core.types import Evaluation, Group, Task

STALE = "stale"
"""Reason under which groups that are too old for training are counted."""


@attrs.frozen(kw_only=True)
class SampledCounts:
    """Counts of what ended since they were last drained."""

    outcomes: Mapping[str, int]
    """Outcome (with reason) -> records, including evaluation and retries."""
    groups: Mapping[str, int]
    """`sampled`, `unusable`, `requeued` -> training groups."""
    answers: Mapping[str, int]
    """Place of the answer (`rollout.outcome_counts.answer_name`) -> training records that a scorer rewarded."""
    tools: Mapping[str, int]
    """`called NAME` and `failed NAME` -> tool calls (`rollout.outcome_counts.tool_names`)."""
    unseen_tools: int | None
    """LLM calls whose tools the chat template dropped; None if it takes tools."""
    idle_s: float = 0.0
    """Seconds in which no episode ran; the mean over all sampling processes."""


@attrs.frozen(kw_only=True)
class SamplingTotals:
    """Counts and costs of all sampling of this process, for the run's summary."""

    outcomes: Mapping[str, int]
    """Outcome (with reason) -> records."""
    groups: Mapping[str, int]
    """`sampled`, `unusable`, `requeued` -> training groups."""
    llm_calls: int
    cpu_seconds: Mapping[str, float]
    """CPU seconds of `agent` (with its SDK), `gateway` and `engine`."""


class SamplingSide(Protocol):
    """Everything that the training loop asks of sampling; its methods are called by one thread.

    The methods that wait raise the error that ended sampling, and return early by the exception of a requested stop.
    """

    @property
    def notices(self) -> Sequence[str]:
        """Lines for the user about engine, agents and chat template so far; more may come with each step."""
        ...

    @property
    def max_tokens(self) -> int:
        """Limit of a reply in tokens where the agent sets none."""
        ...

    @property
    def llm_calls(self) -> int:
        """Replies of the policy so far; may be read from any thread."""
        ...

    def begin(self) -> None:
        """Let training episodes begin."""
        ...

    def take_groups(self, count: int, ahead: OvertakeLimits) -> Sequence[Group]:
        """Block until the next `count` groups are ready."""
        ...

    def replace(self, groups: int) -> None:
        """Sample `groups` more groups for this step, in place of groups that were taken and then not used."""
        ...

    def load_weights(self, version: int, source: WeightSource) -> Publication | None:
        """Sample from `source` as policy `version` from now on; new LLM calls wait until the weights are loaded.

        Returns how the weights came; None if the engine measures nothing.
        """
        ...

    def lend_memory(self, device: str) -> bool:
        """Free the engine's keys and values for a training step on `device`; return whether any were freed.

        Nothing is sampled until `take_memory_back`, which must follow if this returns True.
        """
        ...

    def take_memory_back(self) -> None:
        """End what `lend_memory` began."""
        ...

    def open_capacity(self, version: int, steps_done: int) -> None:
        """Admit the groups that the staleness bound allows after `steps_done` optimizer steps."""
        ...

    def evaluate(self, sets: Mapping[str, Sequence[Task]], tasks: int) -> Mapping[str, Evaluation]:
        """Run the first `tasks` tasks of each set once, and return the results by name; blocks until all are done."""
        ...

    def drain_counts(self) -> SampledCounts:
        """Return the counts since the last call."""
        ...

    def close(self) -> SamplingTotals:
        """Cancel running episodes, close everything, and return what was sampled; allowed at any time."""
        ...


class BatchCollector:
    """Collector of the groups of each step; with `rollout.dynamic_sampling` it tops them up to a whole batch.

    That is DAPO's dynamic sampling: groups that the filters drop are replaced.

    The choice of groups does not depend on which of them ends first, so equal seeds give equal batches: each dropped
    group admits the next group in the order of tasks, and a step waits for all groups that were admitted for it.
    """

    def __init__(
        self,
        sampling: SamplingSide,
        learner: Learner,
        config: RolloutConfig,
        *,
        ages: TokenAges,
        notice: Callable[[str], None],
        ranking: GroupRanking,
    ) -> None:
        self._sampling, self._learner, self._config, self._notice = sampling, learner, config, notice
        self._ages, self._ranking = ages, ranking
        self._totals: Counter[str] = Counter()
        self._idle_s, self._discarded = 0.0, 0

    @property
    def totals(self) -> Mapping[str, int]:
        """Number of groups over all steps so far, under `dropped(REASON)` and `topped_up`."""
        return dict(self._totals)

    def collect(self, steps_done: int) -> tuple[Signal, dict[str, float]]:
        """Block until the groups for the step after `steps_done` are there; return their training signal and metrics.

        Groups with a token that lags by more than `rollout.max_head_offpolicyness` steps, or of a version that is void
        since the run was resumed, are left out, as `stale`, and others are sampled in their place.
        """
        wanted = self._config.tasks_per_step
        self._idle_s, self._discarded = 0.0, 0
        topped_up: dict[str, float] = {}
        if not self._config.dynamic_sampling:
            signal = self._take(wanted, steps_done)
        else:
            signal = self._topped_up(wanted, steps_done)
            count = len(signal.sampled) - wanted - signal.dropped.get(STALE, 0)
            topped_up = {"rollout/groups_topped_up": float(count)}
            self._totals["topped_up"] += count
        self._totals.update({f"dropped({reason})": count for reason, count in signal.dropped.items()})
        return signal, {
            **topped_up,
            **self._ages.of_trained(signal),
            "rollout/groups_stale": float(signal.dropped.get(STALE, 0)),
            "rollout/tokens_discarded": float(self._discarded),
            "time/train_idle_s": self._idle_s,
        }

    def _topped_up(self, wanted: int, steps_done: int) -> Signal:
        """Filter each group as it arrives, and sample another one for each that is dropped, up to the limit."""
        limit = math.floor(wanted * self._config.max_oversampling)
        parts: list[Signal] = []
        # One group at a time: the filter must have decided on it before another one may be admitted.
        admitted = wanted
        while len(parts) < admitted:
            part = self._take(1, steps_done, more=admitted - len(parts) - 1)
            parts.append(part)
            if not part.groups and admitted < limit:
                admitted += 1
                self._sampling.replace(1)
        signal = Signal.joined(parts)
        if len(signal.groups) < wanted:
            reasons = ", ".join(f"{name} {count}" for name, count in sorted(signal.dropped.items()))
            self._notice(
                f"{admitted} groups were sampled, but only {len(signal.groups)} of the {wanted} that a step needs had "
                f"something to learn from (dropped: {reasons}); the step trains on those. To fill the step, raise "
                "rollout.max_oversampling or rollout.group_size, or mix easier and harder tasks"
            )
        return signal

    def _take(self, count: int, steps_done: int, *, more: int = 0) -> Signal:
        """Take `count` groups that are not stale; the signal has the stale ones too, as dropped."""
        parts: list[Signal] = []
        while count:
            ahead = OvertakeLimits(
                step=steps_done,
                max_lag=self._config.max_head_offpolicyness,
                per_step=self._config.tasks_per_step,
                more=more,
            )
            begin = time.perf_counter()
            groups = self._sampling.take_groups(count, self._ranking.apply(ahead))
            self._idle_s += time.perf_counter() - begin
            # Before they are aligned: that gives tokens other versions than those that they were sampled with.
            ages = [self._ages.oldest(group) for group in groups]
            stale = [group for group, age in zip(groups, ages, strict=True) if age > ahead.max_lag]
            fresh = [self._ages.aligned(group) for group, age in zip(groups, ages, strict=True) if age <= ahead.max_lag]
            count = len(stale)
            if not stale and not parts:
                return self._learner.training_signal(fresh)
            parts.append(self._learner.training_signal(fresh))
            if stale:
                self._discarded += sum(_tokens(group) for group in stale)
                parts.append(
                    Signal(sampled=tuple(stale), groups=(), advantages={}, dropped={STALE: count}, with_signal=0)
                )
                self._sampling.replace(count)
        return Signal.joined(parts)


def _tokens(group: Group) -> int:
    return sum(len(call.output_ids) for episode in group.episodes for call in episode.interactions if is_trained(call))
