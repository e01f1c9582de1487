import attrs
import pytest

from agentrl_core.config.sampling_sections import RolloutConfig
from agentrl_core.errors import RunError
from agentrl_core.rollout.outcome_counts import OutcomeCounts, label
from agentrl_core.types import Outcome, Record


def record(outcome, reason="", detail="", task_id="t"):
    return Record(
        id="0123", run_id="run", task_id=task_id, group_id="g", sample_index=0,
        outcome=outcome, reason=reason, detail=detail,
    )  # fmt: skip


SCORED = record(Outcome.SCORED)
FAILED = record(Outcome.FAILED, "ValueError", "ValueError: bad (agent.py:3)", task_id="t7")
HUNG = record(Outcome.TIMED_OUT)


def test_labels_name_outcome_and_reason():
    assert [label(item) for item in (SCORED, FAILED, HUNG)] == ["scored", "failed(ValueError)", "timed_out"]


def test_draining_gives_what_is_new_and_totals_stay():
    tally = OutcomeCounts(RolloutConfig())
    for item in (SCORED, SCORED, FAILED):
        tally.add(item)
    assert tally.records.drain() == {"scored": 2, "failed(ValueError)": 1}
    assert tally.records.drain() == {}
    tally.add(SCORED)
    tally.add_cancelled()
    assert tally.records.drain() == {"scored": 1, "cancelled": 1}
    assert tally.records.totals == {"scored": 3, "failed(ValueError)": 1, "cancelled": 1}


def test_judged_training_records_are_counted_by_where_their_answer_was():
    def judged(source, reward, **fields):
        details = {"judged": {"answer": "x", "from": source, "looked_for": "<answer>…</answer>"}}
        return attrs.evolve(SCORED, reward=reward, score_details=details, **fields)

    tally = OutcomeCounts(RolloutConfig())
    for item in (
        judged("schema", 0.0),
        judged("nowhere", 0.0),
        judged("reply", 0.0),
        judged("reply", 1.0),
        judged("workflow", 1.0),
        judged("schema", 1.0, is_eval=True),
        judged("schema", 1.0, score=0.0),  # the reward is the workflow's own
        FAILED,
    ):
        tally.add(item)
    assert tally.answers.drain() == {
        "schema <answer>…</answer>": 1,
        "nowhere <answer>…</answer>": 1,
        "reply 0": 1,
        "reply": 1,
        "workflow": 1,
    }


def test_groups_are_counted_by_how_they_ended():
    tally = OutcomeCounts(RolloutConfig())
    tally.add_group(usable=True)
    tally.add_group(usable=False)
    tally.add_group(usable=False, requeued=True)
    assert tally.groups.drain() == {"sampled": 3, "unusable": 2, "requeued": 1}
    tally.add_group(usable=True)
    assert tally.groups.drain() == {"sampled": 1}


def test_an_episode_that_was_cancelled_for_a_sibling_is_counted_as_such():
    tally = OutcomeCounts(RolloutConfig())
    tally.add_cancelled()
    tally.add_cancelled("sibling_failed")
    assert tally.records.totals == {"cancelled": 1, "cancelled(sibling_failed)": 1}


def test_more_failures_than_allowed_in_a_full_window_stop_the_run():
    tally = OutcomeCounts(RolloutConfig(max_failure_rate=0.5, failure_window=6))
    for item in (SCORED, SCORED, FAILED, FAILED, HUNG, SCORED):  # three of six: at the limit
        tally.add(item)
    with pytest.raises(RunError) as caught:
        tally.add(FAILED)  # pushes a scored one out
    text = str(caught.value)
    assert text.startswith("4 of the last 6 episodes gave no reward, more than rollout.max_failure_rate = 0.5 allows: ")
    assert "failed(ValueError) 3, timed_out 1" in text
    assert "task 't7': ValueError: bad (agent.py:3)" in text
    assert "agentrl trace show 0123" in text


def test_a_window_that_is_not_full_stops_nothing():
    tally = OutcomeCounts(RolloutConfig(max_failure_rate=0.0, failure_window=3))
    tally.add(FAILED)
    tally.add(FAILED)
    with pytest.raises(RunError):
        tally.add(FAILED)


def test_a_limit_of_one_stops_where_nothing_works():
    tally = OutcomeCounts(RolloutConfig(max_failure_rate=1.0, failure_window=4))
    for item in (FAILED, FAILED, HUNG, SCORED, FAILED, FAILED, HUNG):
        tally.add(item)
    with pytest.raises(RunError, match=r"^4 of the last 4 .* rollout.max_failure_rate = 1 allows any share but all"):
        tally.add(FAILED)


@pytest.mark.parametrize(
    ("failed", "took_s", "pause_s"), [(64, 0.0, 10.0), (60, 0.0, 5.0), (56, 2.0, 0.5), (64, 12.0, 0.0), (24, 0.0, 0.01)]
)
def test_the_more_records_fail_at_once_the_longer_their_places_stay_empty(failed, took_s, pause_s):
    tally = OutcomeCounts(RolloutConfig(max_failure_rate=1.0, failure_window=1000))
    last = attrs.evolve(FAILED, started_at=100.0, finished_at=100.0 + took_s)
    for item in [FAILED] * 40 + [SCORED] * (64 - failed) + [last] * failed:
        tally.add(item)
    assert tally.pause_s(last) == pytest.approx(pause_s, abs=0.001)
    assert tally.pause_s(SCORED) == 0.0


def test_the_first_failures_of_a_run_take_no_time():
    tally = OutcomeCounts(RolloutConfig(max_failure_rate=1.0, failure_window=1000))
    for _ in range(63):
        tally.add(FAILED)
        assert tally.pause_s(FAILED) == 0.0
