"""The terminal: one line per step, warnings that cannot be missed, and a summary with everything to look at next."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from types import SimpleNamespace

import attrs
import pytest
from rich.console import Console
from rich.text import Text

from agentrl_core.api.trackers import Activity
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
    "rollout/replies_cut": 0.25,
    "rollout/groups": 16.0,
    "rollout/tool_calls_per_episode": 2.5,
    "rollout/tokens_per_s": 12_345.6,
    "loss/entropy": 0.71,
    "loss/logprob_gap_max": 1.5e-6,
    "time/step_s": 2.04,
}


def test_a_step_is_one_plain_line_under_its_columns(tracker, output, reports):
    tracker.step_finished(reports.step(12, 0.4375, **FULL))
    header, *meanings, row = output.getvalue().splitlines()
    assert [line.partition(":")[0].strip() for line in meanings] == ["signal", "replies cut", "gap"]  # once
    titles = "step version lag reward signal replies cut tools/ep tokens/s entropy gap s/step"
    assert " ".join(header.split()) == titles
    assert row.split() == ["12", "13", "0.2", "0.438", "14/16", "25%", "2.50", "12,346", "0.710", "1.5e-06", "2.04"]
    assert len(header) == len(row)


def test_metrics_that_are_missing_are_dashes(tracker, output, reports):
    tracker.step_finished(attrs.evolve(reports.step(1), metrics={}))
    assert output.getvalue().splitlines()[-1].split() == ["1", "2", "-", "-", "-/-", *"------"]


def test_the_columns_names_come_again(tracker, output, reports):
    for step in range(1, 42):
        tracker.step_finished(reports.step(step))
    assert output.getvalue().count("tools/ep") == 3


def test_a_warning_is_loud(tmp_path, output):
    tracker = ConsoleTracker(run_dir=tmp_path, console=Console(file=output, width=80, force_terminal=True))
    tracker.notice("WARNING step 7: every reward is 0")
    tracker.notice("loading")
    assert output.getvalue() == "\x1b[1;31mWARNING step 7: every reward is 0\x1b[0m\nloading\n"


def test_a_run_that_learned_nothing_ends_without_a_trained_model(tracker, output, reports, tmp_path):
    (tmp_path / "checkpoints" / "step-40").mkdir(parents=True)
    tracker.run_finished(reports.summary(nothing_learned="nothing was learned: no step changed the weights"))
    assert "run calm-otter finished, but nothing was learned: 40 steps" in output.getvalue()
    assert "untrained model" in output.getvalue()
    assert not any(words in output.getvalue() for words in ("  trained model", "serve it", "train it further"))


def test_a_run_that_only_evaluates_tells_of_no_model(tracker, output, reports):
    tracker.run_finished(reports.summary(steps=0, version=0))
    assert "reward on heldout" in output.getvalue()
    assert "model" not in output.getvalue()
    assert "checkpoints" not in output.getvalue()


def test_notices_and_evaluations_are_lines(tracker, output, reports):
    tracker.notice("building the policy [0.3M]")
    tracker.run_started(reports.run())
    tracker.evaluated(reports.evaluation(10, heldout=0.5, seen=0.75))
    notice, started, evaluation = output.getvalue().splitlines()
    assert notice == "building the policy [0.3M]"
    assert started.startswith("run calm-otter in ")
    assert evaluation == "evaluation after step 10: heldout 0.500 (256 records), seen 0.750 (256 records)"


def test_a_working_directory_that_was_removed_hides_nothing(tracker, output, reports, tmp_path, monkeypatch):
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    tracker.run_started(reports.run())
    tracker.run_finished(reports.summary())
    assert "".join(output.getvalue().split()).count(str(tmp_path)) > 1


def test_the_summary_tells_all_that_one_looks_for(tracker, output, reports, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reward.png").touch()
    tracker.run_started(reports.run())
    tracker.run_finished(reports.summary())
    text = output.getvalue()
    for expected in (
        "run calm-otter finished: 40 steps, 4 min 12 s",
        "reward on heldout  0.250 ± 0.020 -> 0.938 ± 0.020 (step 0 -> 40, 256 records)",
        "reward on seen     0.500 ± 0.020 -> 1.000 ± 0.020 (step 0 -> 40, 256 records)",
        "records            scored 12,500, failed(ValueError) 3",
        "LLM calls          24,310",
        "CPU seconds        236.0 (agent 61.2, gateway 24.0, engine 80.5, learner 70.2)",
        "reward curve       reward.png",
        "checkpoints        none in checkpoints",
        "episodes           agentrl trace list .",
    ):
        assert expected in text
    assert not any(word in text for word in ("resume", "sealed"))
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_single_step_and_a_policy_that_was_not_called_are_told_so(tracker, output, reports):
    tracker.run_finished(reports.summary(steps=1, llm_calls=0))
    assert "run calm-otter finished: 1 step, 4 min" in output.getvalue()
    assert "LLM calls          none to the policy\n" in output.getvalue()


def test_a_run_under_runs_is_called_by_its_name_in_commands(tracker, output, reports, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    summary = reports.summary(status="interrupted", directory=str(tmp_path / "runs" / "calm-otter"))
    tracker.run_finished(summary)
    assert "episodes           agentrl trace list calm-otter\n" in output.getvalue()
    assert "resume it          agentrl runs resume calm-otter\n" in output.getvalue()


def test_a_run_that_failed_says_how_to_go_on_and_leaves_why_to_the_error(tracker, output, reports, tmp_path):
    tracker.run_finished(reports.summary(status="failed", error="the disk is full", evals=(), outcomes={}))
    text = output.getvalue()
    assert "run calm-otter failed" in text
    assert "the disk is full" not in text
    assert "records            none" in text
    assert f"resume it          agentrl runs resume {tmp_path}" in text
    assert "reward curve" not in text


def test_the_curve_is_named_before_it_is_drawn(tracker, output, reports):
    tracker.run_started(reports.run(components={"trackers:curve": "agentrl-core==0.1.0 a:B"}))
    tracker.run_finished(reports.summary(evals=(reports.evaluation(0, heldout=0.5),), wall_s=7300.0))
    assert "reward.png" in output.getvalue()
    assert "2 h 1 min" in output.getvalue()
    assert "->" not in output.getvalue()


def test_the_summary_says_what_the_training_changed_and_how_to_use_the_model(tracker, output, reports, tmp_path):
    for step, reward in enumerate((0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8), start=1):
        tracker.step_finished(reports.step(step, reward))
    for step in (9, 10):
        (tmp_path / "checkpoints" / f"step-{step}").mkdir(parents=True)
    tracker.run_finished(reports.summary(evals=()))
    text = output.getvalue()
    model = tmp_path / "checkpoints" / "step-10"
    assert "training reward    0.200 at step 1 -> 0.700 at step 7 (3 steps each)" in text
    assert f"trained model      {model}, a Hugging Face directory" in text
    assert f"serve it         vllm serve {model}" in text
    assert f"  train it further\n    agentrl run CONFIG \\\n    model.path={model}\n" in text


@pytest.mark.parametrize(
    ("warm_start", "told"), [({"data": "demos.jsonl"}, " \\\n    warm_start=null\n"), (None, "\n")]
)
def test_training_further_names_the_config_and_repeats_no_warm_start(
    tracker, output, reports, tmp_path, monkeypatch, warm_start, told
):
    (tmp_path / "checkpoints" / "step-3").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    config = str(tmp_path / "configs" / "shop.yaml")
    tracker.run_started(reports.run(config={"warm_start": warm_start}, config_file=config))
    tracker.run_finished(reports.summary())
    assert f"agentrl run configs/shop.yaml \\\n    model.path=checkpoints/step-3{told}" in output.getvalue()


def test_a_run_that_trained_nothing_offers_no_trained_model_and_no_curve(tracker, output, reports, tmp_path):
    (tmp_path / "checkpoints" / "step-0").mkdir(parents=True)
    tracker.run_started(reports.run(components={"trackers:curve": "agentrl-core==0.1.0 a:B"}))
    tracker.run_finished(reports.summary(status="failed", evals=()))
    text = output.getvalue()
    assert f"untrained model    {tmp_path / 'checkpoints' / 'step-0'} (no step was finished)" in text
    assert not any(word in text for word in ("reward curve", "vllm", "further"))


def test_one_step_has_nothing_to_compare(tracker, output, reports):
    tracker.step_finished(reports.step(1, 0.5))
    tracker.run_finished(reports.summary())
    assert "training reward" not in output.getvalue()


TITLES = {"step", "reward", "signal", "s/step"}


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("width", [30, 40, 60, 80, 88, 200])
def test_a_row_is_never_wider_than_the_terminal(tmp_path, output, reports, width, verbose):
    console = Console(file=output, width=width, force_terminal=True)
    tracker = ConsoleTracker(run_dir=tmp_path, console=console, verbose=verbose)
    tracker.step_finished(reports.step(12, 0.4375, **FULL))
    header, *_, row = [Text.from_ansi(line).plain for line in output.getvalue().splitlines()]
    titles = set(header.replace("replies cut", "cut").split())
    assert len(header) == len(row) <= width
    assert len(titles) == len(row.split())
    assert titles >= TITLES
    if width < 88 and not verbose:
        assert titles <= TITLES | {"cut"}
    assert ("cut" in titles) == (width >= 40)
    assert ("gap" in titles) == (width >= 88)


@pytest.mark.parametrize("width", [60, 80])
def test_the_summary_fits_a_terminal(tmp_path, output, reports, width):
    tracker = ConsoleTracker(run_dir=tmp_path, console=Console(file=output, width=width, force_terminal=True))
    (tmp_path / "checkpoints").mkdir()
    counts = {f"failed({name}Error)": 1_000 for name in ("Value", "Key", "Type", "Index")}
    tracker.run_finished(reports.summary(outcomes={"scored": 12_500, **counts}, directory="runs/x"))
    lines = [Text.from_ansi(line).plain for line in output.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    assert "failed(IndexError) 1,000" in " ".join(line.strip() for line in lines)


def test_a_pipe_has_all_columns_whatever_its_width(tmp_path, output, reports):
    tracker = ConsoleTracker(run_dir=tmp_path, console=Console(file=output, width=20))
    tracker.step_finished(reports.step(12, 0.4375, **FULL))
    assert output.getvalue().splitlines()[-1].split()[-3:] == ["0.710", "1.5e-06", "2.04"]


SAMPLING = Activity(
    phase="sampling", phase_s=30.0, step=1, steps=4, step_s=30.0, done=32, total=128, unit="episodes", llm_calls=60
)


@pytest.fixture
def watched(tmp_path, output):
    """A console tracker into a pipe, its clock, and the activity that it looks at."""
    state = SimpleNamespace(now=0.0, activity=SAMPLING)
    state.tracker = ConsoleTracker(run_dir=tmp_path, console=Console(file=output), clock=lambda: state.now)
    state.tracker.watch(lambda: state.activity)
    yield state
    state.tracker.close()


def test_a_silent_pipe_has_a_line_every_half_minute(watched, output):
    assert watched.tracker.beat() == 30.0
    watched.now = 29.0
    assert (watched.tracker.beat(), output.getvalue()) == (1.0, "")
    watched.now = 30.0
    assert watched.tracker.beat() == 30.0
    watched.now = 45.0
    watched.tracker.notice("something happens")
    watched.now = 60.0
    assert watched.tracker.beat() == 15.0
    watched.activity = attrs.evolve(SAMPLING, done=96, llm_calls=184, failures={"failed(KeyError)": 2}, phase_s=75.0)
    watched.activity = attrs.evolve(watched.activity, newest_failure="failed(KeyError)")
    watched.now = 75.0
    watched.tracker.beat()
    first, notice, second = output.getvalue().splitlines()
    assert first == "step 1 of 4: sampling, 32 of 128 episodes, 2.0 calls/s, 0:30 so far, about 7:30 left"
    assert notice == "something happens"
    assert second == (
        "step 1 of 4: sampling, 96 of 128 episodes, 2.5 calls/s, 2 failed (newest: failed(KeyError)), 1:15 so far, "
        "about 5:25 left"
    )


def test_a_terminal_has_a_line_of_progress_that_leaves_again(tmp_path, output, reports):
    console = Console(file=output, width=120, force_terminal=True, force_interactive=True)
    tracker = ConsoleTracker(run_dir=tmp_path, console=console)
    tracker.watch(lambda: SAMPLING)
    try:
        tracker._live.refresh()
        assert "step 1/4 sampling 32/128 episodes" in output.getvalue()
        tracker.run_finished(reports.summary())
        tracker.close()
        assert not tracker._live.is_started
    finally:
        tracker.close()
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
    assert done.stderr.startswith("RunError the run's output has no reader any more")
