import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core.api.batching import StepEstimator, TrainedCall
from agentrl_core.batching.advantages import (
    GRPO,
    AgentCPM,
    DrGRPO,
    LeaveOneOut,
    NoBaseline,
    Norm,
    PerTurn,
    ReinforcePP,
)
from agentrl_core.config.component import Component
from agentrl_core.errors import ConfigError
from agentrl_testing.plugins import isolated_plugins

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
LEVELS = ["batch", "group", None]
GROUPS = st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=5), min_size=1, max_size=4)


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


def calls_of(groups, tokens=lambda index: 1):
    """One call for each record."""
    flat = [(group, value) for group, values in enumerate(groups) for value in values]
    return [
        TrainedCall(advantage=value, tokens=tokens(index), record=index, group=group)
        for index, (group, value) in enumerate(flat)
    ]


def over(estimator, rewards, **fields):
    """What a step of records with one call each ends with: `rewards` by group, advantages in one list."""
    return estimator.normalise(calls_of([estimator.advantages(group) for group in rewards], **fields))


def test_reinforce_pp_whitens_the_groups_deviations_over_the_step():
    # Deviations 0.5, -0.5 and 2, -1, -1: mean 0, squares 0.5 + 6, four degrees of freedom.
    found = over(ReinforcePP(eps=1e-300), [[1.0, 0.0], [3.0, 0.0, 0.0]])
    assert found == pytest.approx([v / math.sqrt(6.5 / 4) for v in (0.5, -0.5, 2.0, -1.0, -1.0)], rel=1e-14)


def test_without_baseline_the_rewards_themselves_are_whitened():
    rewards = [[1.0, 0.0], [3.0, -2.0, 0.0], [7.0]]
    flat = [value for group in rewards for value in group]
    mean, std = statistics.fmean(flat), statistics.stdev(flat)
    found = over(ReinforcePP(baseline=False, eps=0.5, scale=2.0), rewards)
    assert found == pytest.approx([2 * (value - mean) / (std + 0.5) for value in flat], rel=1e-14)


def test_groups_are_compared_where_no_baseline_is_taken_of_each():
    assert not ReinforcePP().compares_groups
    assert ReinforcePP(baseline=False).compares_groups
    assert not Norm().compares_groups
    assert Norm(mean_level="batch").compares_groups


def test_a_record_weighs_the_same_whatever_its_calls():
    # The record of three calls has 1/3 for each: mean (1 + 0) / 2, squares 0.25 + 0.25, one degree of freedom.
    calls = [TrainedCall(advantage=1.0, tokens=9, record=0, group=0)] * 3
    calls.append(TrainedCall(advantage=0.0, tokens=1, record=1, group=0))
    root = math.sqrt(0.5)
    found = ReinforcePP(eps=1e-300).normalise(calls)
    assert found == pytest.approx([0.5 / root] * 3 + [-0.5 / root], rel=1e-14)


def test_weighed_by_tokens_a_step_is_as_long_as_its_outputs():
    calls = [
        TrainedCall(advantage=value, tokens=tokens, record=record, group=0)
        for record, (value, tokens) in enumerate([(1.0, 3), (-0.5, 1), (0.25, 5)])
    ]
    flat = [call.advantage for call in calls for _ in range(call.tokens)]
    mean, std = statistics.fmean(flat), statistics.stdev(flat)
    found = ReinforcePP(weigh="token", eps=1e-300).normalise(calls)
    assert found == pytest.approx([(call.advantage - mean) / std for call in calls], rel=1e-13)


@pytest.mark.parametrize("mean_level", LEVELS)
@pytest.mark.parametrize("std_level", LEVELS)
def test_norm_is_areals_with_one_call_per_record(mean_level, std_level):
    rewards = [[1.0, 0.0, 0.5], [3.0, -2.0, 0.25], [0.5, 0.5, 1.0]]
    flat = [value for group in rewards for value in group]
    means = {
        "batch": [statistics.fmean(flat)] * 9,
        "group": [statistics.fmean(group) for group in rewards for _ in group],
        None: [0.0] * 9,
    }[mean_level]
    squares = [(value - mean) ** 2 for value, mean in zip(flat, means, strict=True)]
    stds = {
        "batch": [math.sqrt(sum(squares) / 8)] * 9,
        "group": [math.sqrt(sum(squares[3 * (i // 3) : 3 * (i // 3) + 3]) / 2) for i in range(9)],
        None: [1.0 - 1e-5] * 9,
    }[std_level]
    wanted = [(value - mean) / (std + 1e-5) for value, mean, std in zip(flat, means, stds, strict=True)]
    assert over(Norm(mean_level=mean_level, std_level=std_level), rewards) == pytest.approx(wanted, rel=1e-13)


def test_the_presets_of_norm_are_the_other_estimators():
    rewards = [[1.0, 0.0, 0.5], [3.0, -2.0]]

    def alone(estimator):
        return [value for group in rewards for value in estimator.advantages(group)]

    grpo = Norm(mean_level="group", std_level="group", eps=1e-4)
    assert over(grpo, rewards) == pytest.approx(alone(GRPO()), rel=1e-14)
    assert over(Norm(mean_level="group", std_level=None), rewards) == alone(DrGRPO())
    rloo = Norm(mean_level="group", std_level=None, mean_leave1out=True)
    assert over(rloo, rewards) == alone(LeaveOneOut())
    both = Norm(mean_level="batch", std_level="batch", eps=1e-4)
    assert over(both, rewards) == pytest.approx(over(ReinforcePP(baseline=False), rewards), rel=1e-14)


def test_scale_is_the_last_factor():
    rewards = [[1.0, 0.0, 0.5], [3.0, -2.0]]
    for levels in ({}, {"std_level": None}, {"std_level": "group"}, {"mean_level": "batch", "std_level": "group"}):
        doubled = [2.0 * value for value in over(Norm(**levels), rewards)]
        assert over(Norm(**levels, scale=2.0), rewards) == doubled


def test_a_groups_own_spread_weighs_records_equally():
    # About the step's mean 1: records of squares 4 and (1 + 0) / 2, one degree of freedom.
    calls = [
        TrainedCall(advantage=value, tokens=1, record=record, group=group)
        for value, record, group in [(3.0, 0, 0), (0.0, 1, 0), (1.0, 1, 0), (-0.5, 2, 1)]
    ]
    found = Norm(mean_level="batch", std_level="group", eps=1e-300).normalise(calls)
    root = math.sqrt(4.5)
    assert found == pytest.approx([2 / root, -1 / root, 0.0, -1.5], abs=1e-14)


@pytest.mark.parametrize("value", [0.1, -3.0, 0.0])
@pytest.mark.parametrize("estimator", [ReinforcePP(), ReinforcePP(baseline=False), Norm(mean_level="batch")], ids=str)
def test_a_step_of_equal_records_teaches_nothing(estimator, value):
    assert over(estimator, [[value] * 3, [value] * 4]) == pytest.approx([0.0] * 7, abs=1e-9)


def test_a_single_record_is_divided_by_one():
    assert over(Norm(mean_level=None, std_level="batch", eps=1e-300), [[0.5]]) == [0.5]
    assert over(Norm(mean_level=None, std_level="group", eps=1e-300), [[0.5], [2.0]]) == [0.5, 2.0]
    assert over(ReinforcePP(), [[0.5]]) == [0.0]


def test_one_outlier_does_not_hide_the_rest_of_its_step():
    found = over(ReinforcePP(eps=1e-300), [[0.0, 0.0, 0.0, 1e6], [1.0, 0.0]])
    assert found[:3] == [found[0]] * 3
    assert found[3] == pytest.approx(-3 * found[0])
    assert found[4] == pytest.approx(-found[5])
    assert found[4] > 0


@pytest.mark.parametrize("estimator", [ReinforcePP(), ReinforcePP(weigh="token"), Norm(), Norm(mean_level="batch")])
@settings(max_examples=25)
@given(groups=GROUPS, seed=st.integers(0, 9))
def test_the_order_of_arrival_changes_no_bit(estimator, groups, seed):
    calls = calls_of(groups, tokens=lambda index: 1 + index * 7 % 5)
    shuffled = list(enumerate(calls))
    random.Random(seed).shuffle(shuffled)
    found = estimator.normalise([call for _, call in shuffled])
    assert [value for _, value in sorted(zip((i for i, _ in shuffled), found, strict=True))] == estimator.normalise(
        calls
    )


@pytest.mark.parametrize("estimator", [ReinforcePP(), ReinforcePP(baseline=False), Norm(), Norm(mean_level="batch")])
@settings(max_examples=25)
@given(groups=GROUPS, constant=st.floats(-100, 100))
def test_a_constant_on_all_rewards_of_a_step_changes_nothing(estimator, groups, constant):
    found = over(estimator, [[value + constant for value in group] for group in groups])
    # The sum rounds by 1e-14 of the constant, and a spread of that size is divided by eps, 1e-5 at the least.
    assert found == pytest.approx(over(estimator, groups), rel=1e-6, abs=1e-6)


@given(groups=GROUPS)
def test_whitened_advantages_have_mean_0_and_spread_1(groups):
    found = over(ReinforcePP(baseline=False, eps=1e-300), groups)
    flat = [value for group in groups for value in group]
    if len(flat) > 1 and statistics.stdev(flat) > 1e-9:
        assert statistics.fmean(found) == pytest.approx(0.0, abs=1e-5)
        assert statistics.stdev(found) == pytest.approx(1.0, rel=1e-6)


def test_areals_words_build_it():
    with isolated_plugins() as registry:
        built = registry.build("advantages", Component("norm", {"mean_level": None, "std_level": "batch"}))
        assert built == Norm(mean_level=None, std_level="batch")
        assert registry.build("advantages", Component("reinforce_pp", {"weigh": "token"})) == ReinforcePP(weigh="token")
        for options in ({"std_level": "step"}, {"mean_level": "batch", "mean_leave1out": True}, {"eps": 0.0}):
            with pytest.raises(ConfigError, match="advantage"):
                registry.build("advantages", Component("norm", options), where="advantage")
    assert isinstance(built, StepEstimator)
    assert not isinstance(GRPO(), StepEstimator)
