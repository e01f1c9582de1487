"""A run reports its progress between two events."""

import pytest

from agentrl_core.run.progress import Progress
from agentrl_core.types import Outcome, Record


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def told():
    return []


@pytest.fixture
def progress(told, clock):
    return Progress(told.append, clock=clock)


def record(group, sample, outcome=Outcome.SCORED, reason="", *, attempt=0, is_eval=False):
    return Record(
        id=f"{group}{sample}{attempt}",
        run_id="r",
        task_id="t",
        group_id=group,
        sample_index=sample,
        attempt=attempt,
        outcome=outcome,
        reason=reason,
        detail=f"{reason}: bad (agent.py:3)" if reason else "",
        is_eval=is_eval,
    )


def test_a_phase_has_its_time_and_its_units(progress, clock):
    assert (progress.now().phase, progress.now().total) == ("loading", 0)
    clock.now = 5.0
    progress.begin("warm start", total=250, unit="steps")
    progress.advance()
    clock.now = 7.0
    now = progress.now()
    assert (now.phase, now.phase_s, now.done, now.total, now.unit) == ("warm start", 2.0, 1, 250, "steps")
    progress.begin_step(3, 40, ahead=False)
    progress.begin("training")
    clock.now = 8.0
    now = progress.now()
    assert (now.step, now.steps, now.step_s, now.phase, now.total) == (3, 40, 1.0, "training", 0)


def test_an_episode_counts_once_however_often_it_is_tried(progress):
    progress.begin("sampling", total=4)
    progress.ended(record("a", 0))
    progress.ended(record("a", 1, Outcome.FAILED, "ValueError"))
    progress.ended(record("a", 1, attempt=1))
    progress.ended(record("e", 0, is_eval=True))
    assert (progress.now().done, progress.now().total) == (2, 4)


def test_what_ended_ahead_counts_for_later_steps(progress):
    progress.begin_step(1, 9, ahead=True)
    progress.begin("sampling", total=2)
    for group in "abc":
        for sample in range(2):
            progress.ended(record(group, sample))
    assert (progress.now().done, progress.now().total) == (6, 6)
    progress.taken("a")
    progress.begin_step(2, 9, ahead=True)
    assert progress.now().done == 4
    progress.begin_step(3, 9, ahead=False)
    assert progress.now().done == 0


def test_an_evaluation_counts_its_own_episodes(progress):
    progress.begin("evaluating", total=2)
    progress.ended(record("a", 0))
    progress.ended(record("e", 0, is_eval=True))
    assert progress.now().done == 1


def test_the_first_failure_of_each_kind_is_told_when_it_happens(progress, told):
    for sample in range(3):
        progress.ended(record("a", sample, Outcome.FAILED, "KeyError"))
    progress.ended(record("b", 0, Outcome.TIMED_OUT))
    assert [line.partition(". See")[0] for line in told] == [
        "an episode on task 't' ended without a reward, failed(KeyError): KeyError: bad (agent.py:3)",
        "an episode on task 't' ended without a reward, timed_out: timed_out",
    ]
    assert "`agentrl trace show a00`" in told[0]
    assert progress.now().failures == {"failed(KeyError)": 3, "timed_out": 1}
    assert progress.now().newest_failure == "timed_out"


def test_agents_that_fail_in_ever_new_ways_do_not_flood_the_terminal(progress, told):
    for number in range(50):
        progress.ended(record("a", number, Outcome.FAILED, f"Error{number}"))
    assert len(told) == 10
    assert sum(progress.now().failures.values()) == 50


def test_calls_are_read_where_they_are_counted(progress):
    progress.count_calls(lambda: 42)
    assert progress.now().llm_calls == 42
    progress.begin("sampling", total=4)
    assert progress.now().llm_calls == 0
