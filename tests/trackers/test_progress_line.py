"""The line about the present: what it says, what it leaves out, and how it tells the time that is left."""

import attrs
import pytest

from agentrl_core.api.trackers import Activity
from agentrl_core.trackers.progress_line import Pace, bar_line, clock_text


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def activity(**fields):
    default = {"phase": "sampling", "phase_s": 30.0, "step": 3, "steps": 40, "step_s": 30.0, "unit": "episodes"}
    return Activity(**{**default, "done": 37, "total": 128, "llm_calls": 64, **fields})


def test_nothing_is_left_to_tell_before_the_first_episodes(clock):
    pace = Pace(clock)
    assert pace.left_s(activity(step=0, steps=0)) is None
    assert pace.left_s(activity(phase="evaluating", step=1)) is None
    assert pace.left_s(activity(step=1, done=0)) is None
    assert pace.left_s(activity(step=1, done=6)) is None  # fewer than 5 % of 128 say little


def test_within_the_first_step_episodes_tell_the_time_left(clock):
    # 32 of 128 in 30 s: 120 s a step; 90 s of this one and three more
    assert Pace(clock).left_s(activity(step=1, steps=4, done=32)) == pytest.approx(90 + 3 * 120)


def test_from_then_on_the_duration_of_steps_does_with_what_is_between_them(clock):
    pace = Pace(clock)
    clock.now = 100.0
    pace.step_finished(20.0)
    assert pace.left_s(activity(step=2, steps=4, step_s=5.0)) == pytest.approx(15 + 2 * 20)
    assert pace.left_s(activity(step=2, steps=4, step_s=50.0)) == pytest.approx(2 * 20)  # longer than expected
    clock.now = 160.0
    pace.step_finished(20.0)  # and 40 s of evaluation
    assert pace.left_s(activity(step=3, steps=4, step_s=0.0)) == pytest.approx(2 * (0.3 * 60 + 0.7 * 20))
    assert pace.left_s(activity(step=4, steps=4, step_s=99.0)) is None


def test_while_a_run_waits_for_others_no_time_is_left_to_tell(clock):
    pace = Pace(clock)
    pace.step_finished(0.6)
    assert pace.left_s(activity(step=22, steps=30, step_s=600.0)) == pytest.approx(8 * 0.6)
    assert pace.left_s(activity(step=22, steps=30, step_s=600.0, waits_for="a sampler")) is None


@pytest.mark.parametrize(
    ("phase", "phase_s", "told"),
    [("sampling", 20.0, True), ("evaluating", 20.0, True), ("training", 20.0, False), ("sampling", 0.5, False)],
)
def test_calls_per_second_are_those_of_the_phase(clock, phase, phase_s, told):
    line = bar_line(activity(phase=phase, phase_s=phase_s, llm_calls=50), Pace(clock), 100)
    assert ("2.5 calls/s" in line) == ("calls/s" in line) == told


@pytest.mark.parametrize(
    "now",
    [
        activity(),
        activity(failures={"failed(AVeryLongNameOfAnException)": 12_345}, newest_failure="failed(AVeryLongNameOfAn"),
        activity(phase="loading", step=0, steps=0, total=0, done=0),
        activity(phase="evaluating", step=0, steps=0),
        activity(phase="warm start", unit="steps"),
    ],
)
def test_the_line_fits_every_width(clock, now):
    pace = Pace(clock)
    pace.step_finished(20.0)
    clock.now = 4000.0
    for width in range(8, 130):
        line = bar_line(now, pace, width)
        assert len(line) <= width
        assert "\n" not in line
        if width >= 40:
            assert f"{now.phase} {now.done}/{now.total}" in line or not now.total
            assert not now.step or f"step {now.step}/{now.steps}" in line


def test_what_matters_least_goes_first(clock):
    pace = Pace(clock)
    pace.step_finished(20.0)
    clock.now = 10.0
    failing = activity(failures={"failed(KeyError)": 3}, newest_failure="failed(KeyError)", step_s=0.0, llm_calls=60)
    told = "step 3/40 sampling 37/128 episodes 12:40 left 3 failed (failed(KeyError)) 2.0 calls/s 0:10 so far"
    assert bar_line(failing, pace, len(told)) == told
    assert bar_line(failing, pace, len(told) + 11).startswith("━━╌╌╌╌╌╌╌╌ step")
    assert bar_line(failing, pace, 60) == "step 3/40 sampling 37/128 12:40 left 3 failed 2.0 calls/s"
    assert bar_line(failing, pace, 40) == "step 3/40 sampling 37/128 12:40 left"


def test_nothing_but_a_phase_is_said_while_a_run_loads(clock):
    clock.now = 75.0
    line = bar_line(attrs.evolve(activity(step=0, total=0, phase="loading")), Pace(Clock()), 60)
    assert line == "loading 0:00 so far"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3661, "1:01:01")])
def test_durations(seconds, text):
    assert clock_text(seconds) == text
