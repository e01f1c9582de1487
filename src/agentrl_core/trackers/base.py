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
    """How a run ended."""

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


class Tracker(Protocol):
    """Receives a run's events in order, on the orchestrating thread; must not block for long."""

    def run_started(self, run: RunInfo) -> None:
        """Before the first episode."""
        ...

    def notice(self, message: str) -> None:
        """One line for a person: what is being prepared, or what was decided for them. Also before `run_started`."""
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
