"""Event dispatch: passes each event of a run to its trackers and to the lifecycle hooks of plugins."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agentrl_core.errors import AgentRLError, RunError
from agentrl_core.run.progress import Progress

if TYPE_CHECKING:
    from agentrl_core.api.trackers import EvalReport, RunInfo, RunSummary, StepReport, Tracker
    from agentrl_core.types import Record

logger = logging.getLogger(__name__)


class RunEvents:
    """Dispatcher that passes every event to all trackers, in the config's order, and then to the plugins.

    `call_hook(name, **arguments)` calls a lifecycle hook of every plugin that has it. A tracker that raises stops the
    run with a `RunError` that names the tracker.
    """

    def __init__(self, trackers: Sequence[Tracker], call_hook: Callable[..., object]) -> None:
        self._trackers = tuple(trackers)
        self._call_hook = call_hook
        self._run: RunInfo | None = None
        self.progress = Progress(self.notice)
        """Progress between two events; a tracker with a method `watch` gets a function that reads it at any time."""
        for tracker in self._trackers:
            if hasattr(tracker, "watch"):
                _tell(tracker, "watch", self.progress.now)

    def notice(self, message: str) -> None:
        """Show one line to the user, and write it into the log."""
        logger.info("%s", message)
        self._tell("notice", message)

    def run_started(self, run: RunInfo) -> None:
        """Report the start of the run, before its first episode."""
        self._run = run
        self._tell("run_started", run)
        self._call_hook("run_started", run=run)

    def evaluated(self, report: EvalReport) -> None:
        """Report a finished evaluation; only trackers are told."""
        logger.info("evaluation after step %d: %s", report.step, dict(report.rewards))
        self._tell("evaluated", report)

    def step_finished(self, report: StepReport) -> None:
        """Report a finished optimizer step."""
        logger.info("%s", _line(report))
        self._tell("step_finished", report)
        self._call_hook("step_finished", run=self._run, step=report)

    def record_scored(self, record: Record) -> None:
        """Report a scored record to the plugins; called on the thread of the agents' event loop."""
        self._call_hook("record_scored", run=self._run, record=record)

    def weights_published(self, version: int) -> None:
        """Report to the plugins that the engine has loaded new weights."""
        self._call_hook("weights_published", run=self._run, version=version)

    def run_finished(self, summary: RunSummary) -> None:
        """Report the end of the run, of a failed run too."""
        self._tell("run_finished", summary)
        self._call_hook("run_finished", run=self._run, summary=summary)

    def _tell(self, event: str, value: object) -> None:
        """Pass one event to all trackers."""
        for tracker in self._trackers:
            _tell(tracker, event, value)


def _line(report: StepReport) -> str:
    """Return the main numbers of a step in one line; the trackers and the store have all of them."""
    numbers = [
        form.format(report.metrics[name])
        for name, form in (
            ("reward/mean", "reward {:.3f}"),
            ("loss/value", "loss {:.4g}"),
            ("rollout/lag_mean", "lag {:.1f}"),
            ("rollout/tokens", "{:,.0f} tokens"),
            ("time/step_s", "{:.1f} s"),
        )
        if name in report.metrics
    ]
    return f"step {report.step}, version {report.version}: {', '.join(numbers)}"


def _tell(tracker: Tracker, event: str, value: object) -> None:
    """Call a tracker's method; raise a `RunError` that names the tracker if the method fails."""
    try:
        getattr(tracker, event)(value)
    except AgentRLError:
        raise
    except Exception as error:
        name = type(tracker).__qualname__
        raise RunError(f"tracker {name} failed in `{event}`: {type(error).__name__}: {error}") from error
