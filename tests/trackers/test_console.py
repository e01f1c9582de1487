"""The terminal: one line per step, warnings that cannot be missed, and a summary with everything to look at next."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import attrs
import pytest
from rich.console import Console

from agentrl_core.trackers.console import ConsoleTracker


@pytest.fixture
def output():
    return io.StringIO()


@pytest.fixture
def tracker(tmp_path, output):
    return ConsoleTracker(run_dir=tmp_path, console=Console(file=output, width=80))


FULL = {
    "rollout/lag_mean": 0.25,
    "rollout/groups_with_signal": 14.0,
    "rollout/groups": 16.0,
    "rollout/tool_calls_per_episode": 2.5,
    "rollout/tokens_per_s": 12_345.6,
    "loss/entropy": 0.71,
    "loss/logprob_gap_max": 1.5e-6,
    "time/step_s": 2.04,
}


def test_a_step_is_one_plain_line_under_its_columns(tracker, output, reports):
    tracker.step_finished(reports.step(12, 0.4375, **FULL))
    header, row = output.getvalue().splitlines()
    assert " ".join(header.split()) == "step version lag reward signal tools/ep tokens/s entropy gap s/step"
    assert row.split() == ["12", "13", "0.2", "0.438", "14/16", "2.50", "12,346", "0.710", "1.5e-06", "2.04"]
    assert len(header) == len(row) <= 80


def test_metrics_that_are_missing_are_dashes(tracker, output, reports):
    tracker.step_finished(attrs.evolve(reports.step(1), metrics={}))
    assert output.getvalue().splitlines()[1].split() == ["1", "2", "-", "-", "-/-", "-", "-", "-", "-", "-"]


def test_the_columns_names_come_again(tracker, output, reports):
    for step in range(1, 42):
        tracker.step_finished(reports.step(step))
    assert output.getvalue().count("tools/ep") == 3


def test_a_step_without_signal_is_loud(tracker, output, reports):
    tracker.step_finished(reports.step(7, 0.0, **{"rollout/groups_with_signal": 0.0}))
    tracker.step_finished(reports.step(8, 0.0, **{"rollout/groups_with_signal": 1.0}))
    (warning,) = [line for line in output.getvalue().splitlines() if "WARNING" in line]
    assert "step 7: no group had a signal" in warning


def test_notices_and_evaluations_are_lines(tracker, output, reports):
    tracker.notice("building the policy [0.3M]")
    tracker.run_started(reports.run())
    tracker.evaluated(reports.evaluation(10, heldout=0.5, seen=0.75))
    notice, started, evaluation = output.getvalue().splitlines()
    assert notice == "building the policy [0.3M]"
    assert started.startswith("run calm-otter in ")
    assert evaluation == "evaluation after step 10: heldout 0.500 (256 records), seen 0.750 (256 records)"


def test_the_summary_tells_all_that_one_looks_for(tracker, output, reports, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reward.png").touch()
    tracker.run_started(reports.run())
    tracker.run_finished(reports.summary())
    text = output.getvalue()
    for expected in (
        "run calm-otter finished: 40 steps, policy version 40, 4 min 12 s",
        "reward on heldout    0.250 ± 0.020 after step 0 (256 records) -> 0.938 ± 0.020 after step 40 (256 records)",
        "reward on seen       0.500 ± 0.020 after step 0 (256 records) -> 1.000 ± 0.020 after step 40 (256 records)",
        "records              scored 12,500, failed(ValueError) 3",
        "LLM calls            24,310",
        "CPU seconds          agent 61.2 + gateway 24.0 + engine 80.5 + learner 70.2 = 236.0",
        "reward curve         reward.png",
        "checkpoints          checkpoints",
        "episodes             agentrl trace list .",
    ):
        assert expected in text
    assert "resume" not in text


def test_a_run_under_runs_is_called_by_its_name_in_commands(tracker, output, reports, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    summary = reports.summary(status="interrupted", directory=str(tmp_path / "runs" / "calm-otter"))
    tracker.run_finished(summary)
    assert "episodes             agentrl trace list calm-otter\n" in output.getvalue()
    assert "go on                agentrl runs resume calm-otter\n" in output.getvalue()


def test_a_run_that_failed_says_how_to_go_on_and_leaves_why_to_the_error(tracker, output, reports, tmp_path):
    tracker.run_finished(reports.summary(status="failed", error="the disk is full", evals=(), outcomes={}))
    text = output.getvalue()
    assert "run calm-otter failed" in text
    assert "the disk is full" not in text
    assert "records              none" in text
    assert f"go on                agentrl runs resume {tmp_path}" in text
    assert "reward curve" not in text


def test_the_curve_is_named_before_it_is_drawn(tracker, output, reports):
    tracker.run_started(reports.run(components={"trackers:curve": "agentrl-core==0.1.0 a:B"}))
    tracker.run_finished(reports.summary(evals=(reports.evaluation(0, heldout=0.5),), wall_s=7300.0))
    assert "reward.png" in output.getvalue()
    assert "2 h 1 min" in output.getvalue()
    assert "->" not in output.getvalue()


def test_a_terminal_has_a_progress_bar_that_leaves_again(tmp_path, output, reports):
    console = Console(file=output, width=120, force_terminal=True, force_interactive=True)
    tracker = ConsoleTracker(run_dir=tmp_path, console=console)
    tracker.notice("building the policy")
    assert "/40" not in output.getvalue()
    tracker.run_started(reports.run())
    tracker.step_finished(reports.step(1, 0.5, **FULL))
    tracker._progress.refresh()
    assert "1/40" in output.getvalue()
    tracker.run_finished(reports.summary())
    tracker.close()
    assert tracker._progress.finished is False
    assert not tracker._progress.live.is_started
    assert "run calm-otter finished" in output.getvalue()


def test_a_closed_pipe_stops_the_run_with_a_word(tmp_path):
    program = (
        "import pathlib\n"
        "from agentrl_core.trackers.console import ConsoleTracker\n"
        "tracker = ConsoleTracker(run_dir=pathlib.Path('.'))\n"
        "try:\n"
        "    tracker.notice('hello')\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error, file=__import__('sys').stderr)\n"
        "tracker.notice('the summary')\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("RunError nobody reads the run's output any more")
