"""The `Tracker` protocol, for authors of trackers, and the reports that a run sends to trackers and lifecycle hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.frozen(kw_only=True)
class RunInfo:
    """A run at its start, as trackers and lifecycle hooks see it."""

    name: str
    directory: str
    config: Mapping[str, Any]
    components: Mapping[str, str]
    """`kind:name` -> `dist==version module:attr`."""
    config_file: str = ""
    """Path of the config's file; empty if the config did not come from a file, or comes from the run's own folder."""
    command: str = "run"
    """Command of the run. A run of `sft`, supervised fine-tuning, has neither episodes nor rewards."""


@attrs.frozen(kw_only=True)
class StepReport:
    """Metrics and outcomes of one optimizer step."""

    step: int
    """1-based."""
    version: int
    """Policy version that the step published."""
    metrics: Mapping[str, float]
    """`group/name_unit` -> value: reward/mean, rollout/tool_calls_per_episode, loss/clip_fraction, time/step_s, …"""
    outcomes: Mapping[str, int]
    """Outcome with its reason (`failed(ValueError)`, `rejected(no_score)`) -> number of records since the last step."""
    left_out: Mapping[str, str] = attrs.field(factory=dict)
    """Id of each record that the step left out -> its values that were not finite."""


@attrs.frozen(kw_only=True)
class EvalReport:
    """Results of one evaluation."""

    step: int
    """Number of steps done before the evaluation; 0 is before training."""
    rewards: Mapping[str, float]
    """Name of each task set -> mean reward."""
    records: Mapping[str, int]
    """Name of each task set -> number of scored records; the mean is over these."""
    errors: Mapping[str, float] = attrs.field(factory=dict)
    """Name of each task set -> standard error of the mean reward."""
    failed: Mapping[str, int] = attrs.field(factory=dict)
    """Name of each task set -> number of records without a reward."""
    losses: Mapping[str, float] = attrs.field(factory=dict)
    """Name of each set of chats -> mean loss per token, in nats; only in supervised fine-tuning, without rewards."""


@attrs.frozen(kw_only=True)
class RunSummary:
    """Status, totals and evaluations of a run at its end."""

    name: str
    directory: str
    status: str
    """finished, interrupted or failed."""
    steps: int
    version: int
    evals: tuple[EvalReport, ...]
    outcomes: Mapping[str, int]
    """Outcome (with reason) -> number of records in the whole run."""
    llm_calls: int
    cpu_seconds: Mapping[str, float]
    """Part of the run (agent, gateway, engine, learner) -> CPU seconds."""
    wall_s: float
    trained_tokens: int = 0
    exact_tokens: int = 0
    """Number of trained tokens that the engine is known to have sampled after exactly the trained prompt."""
    error: str = ""
    nothing_learned: str = ""
    """Reason why no step changed the weights; empty if one did, or if the run took none."""
    head: str = ""
    """Digest of the last seal of the run's audit chain, for `agentrl trace verify --head`."""
    groups: Mapping[str, int] = attrs.field(factory=dict)
    """Numbers of training groups. `sampled`: all that ended. `unusable`: those of them without enough scored records.
    `requeued`: those of the unusable ones whose task was put back. `dropped(REASON)`: dropped by a filter.
    `topped_up`: sampled in place of dropped ones."""


@attrs.frozen(kw_only=True)
class Activity:
    """Current phase of a run, with its progress."""

    phase: str
    """loading, warm start, sampling, training, evaluating or saving."""
    phase_s: float
    """Seconds since the phase began."""
    step: int = 0
    """Number of the current step, 1-based; 0 before the first."""
    steps: int = 0
    """Number of steps of the whole run; 0 while it is not known."""
    step_s: float = 0.0
    """Seconds since the step began."""
    done: int = 0
    """Number of units of the phase that are done."""
    total: int = 0
    """Number of units of the phase; 0 if it has none."""
    unit: str = ""
    """episodes, or steps of the warm start."""
    llm_calls: int = 0
    """Number of LLM calls since the phase began."""
    failures: Mapping[str, int] = attrs.field(factory=dict)
    """Outcome (with reason) -> number of records of this process that ended with it and without a reward."""
    newest_failure: str = ""
    """Outcome (with reason) of the newest failed record."""
    waits_for: str = ""
    """Text about what keeps the run from going on, such as a sampler that is missing; empty while it goes on."""


class Tracker(Protocol):
    """Receiver of a run's events. All methods but `notice` are called in order on the orchestrating thread.

    `notice` may come from any thread, at the same time as another method. None may block for long; an exception ends
    the run.

    A tracker that shows progress between two events also has the method `watch(look)`. It is called once, before all
    others. `look` returns the run's `Activity` and may be called from any thread at any time.
    """

    def run_started(self, run: RunInfo) -> None:
        """Receive the start of the run, before its first episode."""
        ...

    def notice(self, message: str) -> None:
        """Receive one line for the user: a preparation, an automatic decision, or a problem.

        May be called before `run_started`; notices about agents come from the thread that runs the agents.
        """
        ...

    def evaluated(self, report: EvalReport) -> None:
        """Receive the results of an evaluation."""
        ...

    def step_finished(self, report: StepReport) -> None:
        """Receive the report of an optimizer step."""
        ...

    def run_finished(self, summary: RunSummary) -> None:
        """Receive the summary at the end of a run, also of a failed run."""
        ...

    def close(self) -> None:
        """Flush and release resources; a second `close` does nothing."""
        ...
