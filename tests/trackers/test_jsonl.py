"""metrics.jsonl: one JSON object per event, appended on resume, whole after a kill."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import numpy as np
import pytest

from agentrl_core.errors import RunError
from agentrl_core.trackers.jsonl import JsonlTracker, read_events


def lines(tmp_path):
    return [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]


def test_every_event_is_one_line_with_its_fields(tmp_path, reports):
    tracker = JsonlTracker(run_dir=tmp_path)
    tracker.notice("building the policy")
    tracker.run_started(reports.run())
    tracker.evaluated(reports.evaluation(0, heldout=0.25))
    tracker.step_finished(reports.step(1, 0.5, **{"loss/value": np.float32(-0.25)}))
    tracker.run_finished(reports.summary())
    tracker.close()
    tracker.close()
    started, evaluated, step, finished = lines(tmp_path)
    assert [started["event"], evaluated["event"], step["event"], finished["event"]] == [
        "run_started",
        "evaluated",
        "step_finished",
        "run_finished",
    ]
    assert started["config"] == {"trainer": {"steps": 40}}
    assert (evaluated["step"], evaluated["rewards"], evaluated["records"]) == (0, {"heldout": 0.25}, {"heldout": 256})
    assert (step["step"], step["version"], step["outcomes"]) == (1, 2, {"scored": 8})
    assert step["metrics"] == {"reward/mean": 0.5, "loss/value": -0.25}
    assert finished["evals"][1]["rewards"]["seen"] == 1.0
    assert started["time"] <= finished["time"]


def test_a_line_is_there_before_the_call_returns(tmp_path, reports):
    tracker = JsonlTracker(run_dir=tmp_path)
    for step in range(1, 4):
        tracker.step_finished(reports.step(step))
        assert lines(tmp_path)[-1]["step"] == step
    tracker.close()


def test_what_json_lacks_is_null(tmp_path, reports):
    tracker = JsonlTracker(run_dir=tmp_path)
    tracker.step_finished(reports.step(1, float("nan"), **{"loss/value": float("inf")}))
    tracker.close()
    assert lines(tmp_path)[0]["metrics"] == {"reward/mean": None, "loss/value": None}


def test_a_resumed_run_appends_and_a_torn_line_spoils_no_other(tmp_path, reports):
    first = JsonlTracker(run_dir=tmp_path)
    first.step_finished(reports.step(1))
    first.step_finished(reports.step(2))
    first.close()
    path = tmp_path / "metrics.jsonl"
    os.truncate(path, path.stat().st_size - 20)
    second = JsonlTracker(run_dir=tmp_path)
    second.step_finished(reports.step(2))
    second.step_finished(reports.step(3))
    second.close()
    assert [event["step"] for event in read_events(path)] == [1, 2, 3]


def test_events_of_a_run_without_metrics_are_none(tmp_path):
    assert list(read_events(tmp_path / "metrics.jsonl")) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file/metrics\.jsonl: cannot open"):
        JsonlTracker(run_dir=tmp_path / "file")


def test_a_full_disk_is_named_and_the_next_line_is_whole(tmp_path):
    """In a process of its own, whose files may not grow beyond a limit."""
    script = """
import resource, sys
from pathlib import Path
from agentrl_core.errors import RunError
from agentrl_core.api.trackers import StepReport
from agentrl_core.trackers.jsonl import JsonlTracker

tracker = JsonlTracker(run_dir=Path(sys.argv[1]))
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
for step in range(1, 100):
    report = StepReport(step=step, version=0, metrics={}, outcomes={})
    try:
        tracker.step_finished(report)
    except RunError as error:
        print(error)
        break
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
tracker.step_finished(report)
tracker.close()
print(step)
"""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True, timeout=60
    )
    message, last = done.stdout.splitlines()
    assert "metrics.jsonl: cannot write" in message
    assert [event["step"] for event in read_events(tmp_path / "metrics.jsonl")] == list(range(1, int(last) + 1))
