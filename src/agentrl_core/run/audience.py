"""Who follows a run: its trackers, and the lifecycle hooks of plugins."""

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


class Audience:
    """Passes every event to all trackers in order, then to the plugins.

    `call_hook(name, **arguments)` calls a lifecycle hook of every plugin that has it.
    """

    def __init__(self, trackers: Sequence[Tracker], call_hook: Callable[..., object]) -> None:
        self._trackers = tuple(trackers)
        self._call_hook = call_hook
        self._run: RunInfo | None = None
        self.progress = Progress(self.notice)
        """Progress between two events, for trackers that `watch`."""
        for tracker in self._trackers:
            if hasattr(tracker, "watch"):
                _tell(tracker, "watch", self.progress.now)

    def notice(self, message: str) -> None:
        """One line for a person, also kept in the log."""
        logger.info("%s", message)
        self._tell("notice", message)

    def run_started(self, run: RunInfo) -> None:
        """Before the first episode."""
        self._run = run
        self._tell("run_started", run)
        self._call_hook("run_started", run=run)

    def evaluated(self, report: EvalReport) -> None:
        """After an evaluation."""
        logger.info("evaluation after step %d: %s", report.step, dict(report.rewards))
        self._tell("evaluated", report)

    def step_finished(self, report: StepReport) -> None:
        """After each optimizer step."""
        logger.info("step %d, version %d: %s", report.step, report.version, dict(report.metrics))
        self._tell("step_finished", report)
        self._call_hook("step_finished", run=self._run, step=report)

    def record_scored(self, record: Record) -> None:
        """After each scored record; called on the agents' loop."""
        self._call_hook("record_scored", run=self._run, record=record)

    def weights_published(self, version: int) -> None:
        """After the engine took new weights."""
        self._call_hook("weights_published", run=self._run, version=version)

    def run_finished(self, summary: RunSummary) -> None:
        """At the end, failed runs included."""
        self._tell("run_finished", summary)
        self._call_hook("run_finished", run=self._run, summary=summary)

    def _tell(self, event: str, value: object) -> None:
        """Pass one event on to all trackers."""
        for tracker in self._trackers:
            _tell(tracker, event, value)


def _tell(tracker: Tracker, event: str, value: object) -> None:
    """Call a tracker's method; one that fails stops the run by its name."""
    try:
        getattr(tracker, event)(value)
    except AgentRLError:
        raise
    except Exception as error:
        name = type(tracker).__qualname__
        raise RunError(f"tracker {name} failed at {event}: {type(error).__name__}: {error}") from error
