"""reward.png: a picture of 900 x 450 of what was reported, resumed runs included."""

from __future__ import annotations

import struct

import attrs
import pytest

from agentrl_core.errors import RunError
from agentrl_core.trackers.curve import CurveTracker, _moving_average, draw_side_by_side
from agentrl_core.trackers.jsonl import JsonlTracker


def size(path):
    header = path.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    return struct.unpack(">II", header[16:])


def test_the_picture_is_drawn_at_the_end(tmp_path, reports):
    tracker = CurveTracker(run_dir=tmp_path)
    tracker.notice("building the policy")
    tracker.run_started(reports.run())
    tracker.evaluated(reports.evaluation(0, heldout=0.2, seen=0.3))
    for step in range(1, 5):
        tracker.step_finished(reports.step(step, step / 5))
    tracker.evaluated(reports.evaluation(4, heldout=0.9, seen=1.0))
    assert not (tmp_path / "reward.png").exists()
    tracker.run_finished(reports.summary())
    tracker.close()
    assert size(tmp_path / "reward.png") == (900, 450)
    assert not list(tmp_path.glob("*.tmp"))


def test_the_picture_is_drawn_now_and_then(tmp_path, reports):
    tracker = CurveTracker(run_dir=tmp_path, every=2)
    tracker.run_started(reports.run())
    tracker.step_finished(reports.step(1, -3.0))
    assert not (tmp_path / "reward.png").exists()
    tracker.step_finished(reports.step(2, 5.0))
    assert size(tmp_path / "reward.png") == (900, 450)


def test_nothing_reported_makes_no_picture(tmp_path, reports):
    tracker = CurveTracker(run_dir=tmp_path)
    tracker.run_started(reports.run())
    tracker.run_finished(reports.summary(status="failed", steps=0))
    assert not (tmp_path / "reward.png").exists()


def test_a_resumed_run_keeps_its_past_up_to_the_checkpoint(tmp_path, reports):
    """Killed after step 5, resumed from the checkpoint of step 2: steps 3 to 5 are taken again."""
    past = JsonlTracker(run_dir=tmp_path)
    past.evaluated(reports.evaluation(0, heldout=0.1))
    for step in range(1, 6):
        past.evaluated(reports.evaluation(step, heldout=step / 10))
        past.step_finished(reports.step(step, step / 10))
    past.close()
    tracker = CurveTracker(run_dir=tmp_path)
    tracker.run_started(reports.run())
    assert tracker._rewards == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4, 5: 0.5}
    tracker.evaluated(reports.evaluation(2, heldout=0.25))
    tracker.step_finished(reports.step(3, 0.9))
    assert tracker._rewards == {1: 0.1, 2: 0.2, 3: 0.9}
    assert {step: rewards["heldout"] for step, rewards in tracker._evals.items()} == {0: 0.1, 1: 0.1, 2: 0.25}


def test_a_step_without_a_reward_is_left_out(tmp_path, reports):
    tracker = CurveTracker(run_dir=tmp_path)
    tracker.step_finished(attrs.evolve(reports.step(1), metrics={}))
    assert tracker._rewards == {}


def test_the_moving_average_is_centred_and_shorter_at_the_ends():
    assert _moving_average([0.0, 3.0, 6.0, 9.0], 3) == [1.5, 3.0, 6.0, 7.5]
    assert _moving_average([1.0, 2.0], 1) == [1.0, 2.0]


def test_options_below_one_are_refused(tmp_path):
    with pytest.raises(ValueError, match="at least 1"):
        CurveTracker(run_dir=tmp_path, every=0)


def test_a_folder_that_is_gone_is_named(tmp_path, reports):
    tracker = CurveTracker(run_dir=tmp_path / "gone")
    tracker.step_finished(reports.step(1))
    with pytest.raises(RunError, match=r"reward\.png: cannot write"):
        tracker.run_finished(reports.summary())


def test_a_write_that_fails_leaves_nothing(tmp_path, reports):
    tracker = CurveTracker(run_dir=tmp_path)
    (tmp_path / "reward.png").mkdir()
    tracker.step_finished(reports.step(1))
    with pytest.raises(RunError, match=r"reward\.png: cannot write"):
        tracker.run_finished(reports.summary())
    assert [path.name for path in tmp_path.iterdir()] == ["reward.png"]


def test_several_runs_have_a_panel_each_in_one_picture(tmp_path):
    path = tmp_path / "rewards.png"
    draw_side_by_side({"grpo": [0.1, 0.4, 0.9], "gspo": [0.1, 0.2]}, path)
    two = size(path)
    draw_side_by_side({"grpo": [0.1, 0.4, 0.9], "gspo": [0.1, 0.2], "cispo": [0.3]}, path)
    assert two == (460, 250)
    assert size(path) == (660, 250)
    assert not list(tmp_path.glob("*.tmp"))
    with pytest.raises(RunError, match="cannot write"):
        draw_side_by_side({"grpo": [0.1]}, tmp_path / "missing" / "rewards.png")
