"""What a tracker must do: follow a run's numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.frozen(kw_only=True)
class RunInfo:
    """A run as trackers and lifecycle hooks see it."""

    name: str
    directory: str
    config: Mapping[str, Any]
    components: Mapping[str, str]
    """`kind:name` -> `dist==version module:attr`."""
    command: str = "run"
    """Of which command the run is; `sft`, a supervised fine-tuning, has neither episodes nor rewards."""


@attrs.frozen(kw_only=True)
class StepReport:
    """One optimizer step in numbers."""

    step: int
    """1-based."""
    version: int
    """Policy version that the step published."""
    metrics: Mapping[str, float]
    """`group/name_unit` -> value: reward/mean, rollout/tool_calls_per_episode, loss/clip_fraction, time/step_s, …"""
    outcomes: Mapping[str, int]
    """Outcome (with reason) -> records since the last step."""
    left_out: Mapping[str, str] = attrs.field(factory=dict)
    """Id of a record that the step left out -> what of it was not finite."""


@attrs.frozen(kw_only=True)
class EvalReport:
    """One evaluation."""

    step: int
    """Steps done before it; 0 is before training."""
    rewards: Mapping[str, float]
    """Name of the task set -> mean reward."""
    records: Mapping[str, int]
    """Name of the task set -> scored records; the mean is over these."""
    errors: Mapping[str, float] = attrs.field(factory=dict)
    """Name of the task set -> standard error of the mean reward."""
    failed: Mapping[str, int] = attrs.field(factory=dict)
    """Name of the task set -> records that gave no reward."""
    losses: Mapping[str, float] = attrs.field(factory=dict)
    """Name of the set of chats -> mean loss per token, in nats; of a supervised fine-tuning, which has no rewards."""


@attrs.frozen(kw_only=True)
class RunSummary:
    """The end of a run: status, reason and output."""

    name: str
    directory: str
    status: str
    """finished, interrupted or failed."""
    steps: int
    version: int
    evals: tuple[EvalReport, ...]
    outcomes: Mapping[str, int]
    """Outcome (with reason) -> records of the whole run."""
    llm_calls: int
    cpu_seconds: Mapping[str, float]
    """agent, gateway, engine, learner -> CPU seconds."""
    wall_s: float
    trained_tokens: int = 0
    exact_tokens: int = 0
    """Those of them that are known to be what the engine sampled, behind what it was given."""
    error: str = ""
    groups: Mapping[str, int] = attrs.field(factory=dict)
    """`sampled` -> training groups that ended; of those `unusable`, of those `requeued`; `dropped(REASON)` by a filter;
    `topped_up` in place of dropped ones."""


@attrs.frozen(kw_only=True)
class Activity:
    """A run's current phase, with its progress."""

    phase: str
    """loading, warm start, sampling, training, evaluating or saving."""
    phase_s: float
    """Seconds since the phase began."""
    step: int = 0
    """The step that is being taken, 1-based; 0 before the first."""
    steps: int = 0
    """Steps that the run is to take; 0 where it is not known yet."""
    step_s: float = 0.0
    """Seconds since the step began."""
    done: int = 0
    """Units of the phase that are done."""
    total: int = 0
    """Units of the phase; 0 where it has none."""
    unit: str = ""
    """episodes, or steps of the warm start."""
    llm_calls: int = 0
    """Since the phase began."""
    failures: Mapping[str, int] = attrs.field(factory=dict)
    """Outcome (with reason) -> records of this process that ended so, without a reward."""
    newest_failure: str = ""
    """Outcome (with reason) of the newest of them."""


class Tracker(Protocol):
    """Receives a run's events in order, on the orchestrating thread; must not block for long.

    A tracker that shows what happens between two events has `watch(look)`, too: called once, before everything else,
    with a function that returns the run's `Activity`, from any thread and at any time.
    """

    def run_started(self, run: RunInfo) -> None:
        """Before the first episode."""
        ...

    def notice(self, message: str) -> None:
        """One line for a person: what is being prepared, was decided for them, or goes wrong.

        Also before `run_started`; about agents, from the thread that they run on.
        """
        ...

    def evaluated(self, report: EvalReport) -> None:
        """After an evaluation."""
        ...

    def step_finished(self, report: StepReport) -> None:
        """After each optimizer step."""
        ...

    def run_finished(self, summary: RunSummary) -> None:
        """At the end, failed runs included."""
        ...

    def close(self) -> None:
        """Flush; idempotent."""
        ...
