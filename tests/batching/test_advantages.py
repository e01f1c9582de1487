import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core.batching.advantages import GRPO, AgentCPM, DrGRPO, LeaveOneOut, NoBaseline, PerTurn

ESTIMATORS = [
    GRPO(),
    GRPO(std=False),
    GRPO(scale=3.0),
    DrGRPO(),
    PerTurn(),
    PerTurn(std=False, scale=2.0),
    AgentCPM(),
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


@pytest.mark.parametrize("estimator", ESTIMATORS[:-1], ids=str)
@pytest.mark.parametrize("rewards", [[0.3], [0.1, 0.1, 0.1], [1.0] * 8])
def test_records_that_did_equally_well_have_no_advantage(estimator, rewards):
    assert estimator.advantages(rewards) == pytest.approx([0.0] * len(rewards), abs=1e-9)


def test_leave_one_out_is_agentrls():
    # AgentCPM AgentRL, adv_scaling 2: two right records of eight.
    found = AgentCPM(scale=2.0).advantages([1.0, 1.0, 0, 0, 0, 0, 0, 0])
    assert found == pytest.approx([1.714286] * 2 + [-0.571429] * 6, abs=5e-7)
    assert found == LeaveOneOut(scale=2.0, sign_clip=True).advantages([1.0, 1.0, 0, 0, 0, 0, 0, 0])


@given(rewards=st.lists(st.floats(-1, 2), min_size=2, max_size=9))
def test_agentrls_rules_one_after_the_other(rewards):
    wanted = []
    for index, reward in enumerate(rewards):
        others = rewards[:index] + rewards[index + 1 :]
        advantage = reward - sum(others) / len(others)
        advantage = min(advantage, 0.0) if reward <= 0.5 else max(advantage, 0.0)
        wanted.append(1.5 * advantage)
    assert AgentCPM(scale=1.5).advantages(rewards) == pytest.approx(wanted, abs=1e-14)


def test_dr_grpo_is_the_deviation_alone():
    assert DrGRPO(scale=2.0).advantages([1.0, 0.0, 0.0, 2.0]) == [0.5, -1.5, -1.5, 2.5]
    assert DrGRPO().advantages([-3.0, -1.0]) == [-1.0, 1.0]


def test_sign_clip_keeps_a_wrong_record_from_a_positive_advantage():
    rewards = [0.9, 0.5, 0.2, 1.0]
    assert LeaveOneOut().advantages(rewards) == pytest.approx([0.9 - 1.7 / 3, 0.5 - 0.7, 0.2 - 0.8, 1.0 - 1.6 / 3])
    assert LeaveOneOut(sign_clip=True).advantages([0.5, 0.0]) == pytest.approx([0.0, -0.5])
    assert LeaveOneOut(sign_clip=True).advantages([0.6, 1.0]) == pytest.approx([0.0, 0.4])


def test_no_baseline_is_the_reward():
    assert NoBaseline().advantages([0.5, -1.0]) == [0.5, -1.0]
    assert NoBaseline().turn_advantages([[0.5, 1.0], []]) == [[0.5, 1.0], []]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
@settings(max_examples=25)
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


def test_per_turn_compares_equal_turns():
    # Turn 0: 3, 1, 2; turn 1: 0, 4; turn 2: the first record alone.
    found = PerTurn(std=False).turn_advantages([[3.0, 0.0, 9.0], [1.0, 4.0], [2.0], []])
    assert found == [[1.0, -2.0, 0.0], [-1.0, 2.0], [0.0], []]
    root = math.sqrt(8.0)
    found = PerTurn(eps=0.0, scale=3.0).turn_advantages([[3.0, 0.0, 9.0], [1.0, 4.0], [2.0]])
    assert found[0] == pytest.approx([3.0, -6.0 / root, 0.0], rel=1e-15)
    assert found[1] == pytest.approx([-3.0, 6.0 / root], rel=1e-15)
    assert found[2] == [0.0]


@given(st.lists(st.lists(st.floats(-9, 9), max_size=4), max_size=6))
def test_per_turn_is_grpo_on_every_turn(returns):
    found = PerTurn().turn_advantages(returns)
    for turn in range(4):
        column = [turns[turn] for turns in returns if len(turns) > turn]
        assert [turns[turn] for turns in found if len(turns) > turn] == GRPO().advantages(column)


@pytest.mark.parametrize("estimator", [GRPO(eps=1e-12), DrGRPO(), PerTurn(eps=1e-12), LeaveOneOut()], ids=str)
@settings(max_examples=25)
@given(rewards=st.lists(st.integers(-20, 20), min_size=1, max_size=9), constant=st.integers(-1000, 1000))
def test_a_constant_on_all_rewards_changes_nothing(estimator, rewards, constant):
    moved = estimator.advantages([float(reward + constant) for reward in rewards])
    assert moved == pytest.approx(estimator.advantages([float(reward) for reward in rewards]), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
@settings(max_examples=25)
@given(data=st.data(), returns=st.lists(st.lists(st.floats(-9, 9), max_size=3), min_size=1, max_size=6))
def test_advantages_go_with_their_records(estimator, data, returns):
    order = data.draw(st.permutations(range(len(returns))))
    found = estimator.turn_advantages(returns)
    turned = estimator.turn_advantages([returns[index] for index in order])
    assert turned == [found[index] for index in order]


def test_a_single_outlier_has_the_others_against_it():
    # Three zeros and one: deviations -1/4 and 3/4, sample variance (3/16 + 9/16) / 3 = 1/4, whatever its size.
    for size in (1.0, 1e6, -1e6):
        found = GRPO(eps=0.0).advantages([0.0, 0.0, 0.0, size])
        sign = math.copysign(1.0, size)
        assert found == pytest.approx([-0.5 * sign] * 3 + [1.5 * sign], rel=1e-14)
    assert LeaveOneOut().advantages([0.0, 0.0, 0.0, 6.0]) == [-2.0, -2.0, -2.0, 6.0]


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
