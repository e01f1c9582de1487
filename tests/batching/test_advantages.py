import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.batching.advantages import GRPO, LeaveOneOut, NoBaseline

ESTIMATORS = [
    GRPO(),
    GRPO(std=False),
    GRPO(scale=3.0),
    LeaveOneOut(),
    LeaveOneOut(scale=2.0, sign_clip=True),
    NoBaseline(),
]
REWARDS = st.lists(st.floats(-10, 10), min_size=1, max_size=9)


def test_grpo_is_the_deviation_in_sample_standard_deviations():
    rewards = [1.0, 0.0, 0.0, 2.0]
    mean, spread = statistics.mean(rewards), statistics.stdev(rewards)
    assert GRPO().advantages(rewards) == pytest.approx([(r - mean) / (spread + 1e-4) for r in rewards])
    assert GRPO(std=False, scale=2.0).advantages(rewards) == pytest.approx([2 * (r - mean) for r in rewards])


@pytest.mark.parametrize("estimator", [GRPO(), GRPO(std=False), LeaveOneOut(), LeaveOneOut(sign_clip=True)])
@pytest.mark.parametrize("rewards", [[0.3], [0.1, 0.1, 0.1], [1.0] * 8])
def test_records_that_did_equally_well_have_no_advantage(estimator, rewards):
    assert estimator.advantages(rewards) == pytest.approx([0.0] * len(rewards), abs=1e-9)


def test_leave_one_out_is_agentrls():
    # AgentCPM AgentRL, adv_scaling 2: two right records of eight.
    found = LeaveOneOut(scale=2.0, sign_clip=True).advantages([1.0, 1.0, 0, 0, 0, 0, 0, 0])
    assert found == pytest.approx([1.714286] * 2 + [-0.571429] * 6, abs=5e-7)


def test_sign_clip_keeps_a_wrong_record_from_a_positive_advantage():
    rewards = [0.9, 0.5, 0.2, 1.0]
    assert LeaveOneOut().advantages(rewards) == pytest.approx([0.9 - 1.7 / 3, 0.5 - 0.7, 0.2 - 0.8, 1.0 - 1.6 / 3])
    assert LeaveOneOut(sign_clip=True).advantages([0.5, 0.0]) == pytest.approx([0.0, -0.5])
    assert LeaveOneOut(sign_clip=True).advantages([0.6, 1.0]) == pytest.approx([0.0, 0.4])


def test_no_baseline_is_the_reward():
    assert NoBaseline().advantages([0.5, -1.0]) == [0.5, -1.0]
    assert NoBaseline().turn_advantages([[0.5, 1.0], []]) == [[0.5, 1.0], []]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
@given(rewards=REWARDS)
def test_one_return_per_record_is_the_scalar_case(estimator, rewards):
    by_turn = estimator.turn_advantages([[reward] for reward in rewards])
    assert [value for turns in by_turn for value in turns] == pytest.approx(estimator.advantages(rewards))


def test_a_long_record_counts_no_more_than_a_short_one():
    # Eight good turns against one bad: a mean over turns would be 0.889.
    good, bad = GRPO(std=False).turn_advantages([[1.0] * 8, [0.0]])
    assert good == pytest.approx([0.5] * 8)
    assert bad == pytest.approx([-0.5])
    assert LeaveOneOut().turn_advantages([[1.0] * 8, [0.0]]) == [[1.0] * 8, [-1.0]]


def test_per_turn_spread_weighs_records_equally():
    # Record means 1 and 0, baseline 0.5; squares: mean((1.5)^2, (-0.5)^2) = 1.25 and 0.25; sample variance 1.5.
    first, second = GRPO(eps=0.0).turn_advantages([[2.0, 0.0], [0.0]])
    assert first == pytest.approx([1.5 / math.sqrt(1.5), -0.5 / math.sqrt(1.5)])
    assert second == pytest.approx([-0.5 / math.sqrt(1.5)])


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_a_record_without_turns_has_no_say(estimator):
    with_empty = estimator.turn_advantages([[1.0], [], [0.0, 0.5]])
    without = estimator.turn_advantages([[1.0], [0.0, 0.5]])
    assert with_empty == [without[0], [], without[1]]
    assert estimator.turn_advantages([[], []]) == [[], []]


@pytest.mark.parametrize("rewards", [[0.5, 0.5, 0.5], [0.1, 0.1, 0.1], [0.0, 0.0], [1.0]])
def test_equal_rewards_without_eps_have_no_advantage(rewards):
    grpo = GRPO(eps=0.0)
    assert grpo.advantages(rewards) == [0.0] * len(rewards)
    assert grpo.turn_advantages([[reward, reward] for reward in rewards]) == [[0.0, 0.0]] * len(rewards)
