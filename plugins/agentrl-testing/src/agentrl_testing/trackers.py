"""Conformance tests of trackers: `TrackerSuite` for pytest, `check_tracker` for scripts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import pytest

from agentrl_core.api.trackers import EvalReport, RunInfo, RunSummary, StepReport
from agentrl_testing.base import ConformanceSuite

if TYPE_CHECKING:
    from pathlib import Path

    from agentrl_core.api.trackers import Tracker

TrackerFactory: TypeAlias = "Callable[[Path], Tracker]"
"""Function from a run directory to a tracker."""


class TrackerSuite(ConformanceSuite):
    """Conformance tests of trackers; define the fixture `tracker_factory`, a function from a run directory to one."""

    @pytest.fixture
    def tracker_factory(self) -> TrackerFactory:
        """Return a function that makes a tracker for a run directory."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `tracker_factory`")

    def test_it_follows_a_run_from_its_start_to_its_end(self, tracker_factory: TrackerFactory, tmp_path: Path) -> None:
        """The tracker accepts notices, evaluations, steps, NaN values and a second `close`."""
        _check_whole_run(tracker_factory, tmp_path)

    def test_it_takes_the_end_of_a_run_that_never_began(self, tracker_factory: TrackerFactory, tmp_path: Path) -> None:
        """A run may fail during its preparation, before `run_started` is called."""
        _check_failed_run(tracker_factory, tmp_path)

    def test_it_goes_on_in_the_folder_of_a_resumed_run(self, tracker_factory: TrackerFactory, tmp_path: Path) -> None:
        """A second tracker in the same folder keeps the files of the first."""
        _check_resumed(tracker_factory, tmp_path)


def check_tracker(tracker_factory: TrackerFactory, run_dir: Path) -> None:
    """Raise AssertionError, or the tracker's own exception, if it breaks its contract; write into `run_dir`."""
    for number, check in enumerate((_check_whole_run, _check_failed_run, _check_resumed)):
        folder = run_dir / str(number)
        folder.mkdir()
        check(tracker_factory, folder)


def _check_whole_run(tracker_factory: TrackerFactory, run_dir: Path) -> None:
    tracker = tracker_factory(run_dir)
    tracker.notice("warm start: 10 steps")
    tracker.run_started(_info(run_dir))
    tracker.evaluated(_evaluation(0, math.nan, records=0))
    for step in (1, 2):
        tracker.step_finished(_step(step))
    tracker.evaluated(_evaluation(2, 0.5, records=8))
    tracker.run_finished(_summary(run_dir, "finished"))
    tracker.close()
    tracker.close()


def _check_failed_run(tracker_factory: TrackerFactory, run_dir: Path) -> None:
    tracker = tracker_factory(run_dir)
    tracker.run_finished(_summary(run_dir, "failed"))
    tracker.close()


def _check_resumed(tracker_factory: TrackerFactory, run_dir: Path) -> None:
    before: dict[str, int] = {}
    for step in (1, 2):
        tracker = tracker_factory(run_dir)
        tracker.run_started(_info(run_dir))
        tracker.step_finished(_step(step))
        tracker.run_finished(_summary(run_dir, "interrupted"))
        tracker.close()
        sizes = {str(path): path.stat().st_size for path in run_dir.rglob("*") if path.is_file()}
        lost = sorted(name for name, size in before.items() if size and not sizes.get(name))
        assert not lost, f"a resumed run emptied {', '.join(lost)}"
        before = sizes


def _info(run_dir: Path) -> RunInfo:
    return RunInfo(name="calm-otter", directory=str(run_dir), config={"seed": 0}, components={"losses:grpo": "here"})


def _step(step: int) -> StepReport:
    metrics = {"reward/mean": 0.25 * step, "rollout/lag_mean": 0.0, "time/step_s": 1.5, "a_plugin/of_its_own": math.nan}
    return StepReport(step=step, version=step, metrics=metrics, outcomes={"scored": 8, "failed(ValueError)": 1})


def _evaluation(step: int, reward: float, *, records: int) -> EvalReport:
    return EvalReport(step=step, rewards={"heldout": reward}, records={"heldout": records}, failed={"heldout": 1})


def _summary(run_dir: Path, status: str) -> RunSummary:
    return RunSummary(
        name="calm-otter",
        directory=str(run_dir),
        status=status,
        steps=2,
        version=2,
        evals=(_evaluation(2, 0.5, records=8),),
        outcomes={"scored": 16},
        llm_calls=32,
        cpu_seconds={"agent": 1.0, "gateway": 0.5, "engine": 2.0, "learner": 1.0},
        wall_s=4.0,
        error="RunError: no groups" if status == "failed" else "",
    )
