import numpy as np
import pytest

from agentrl_core.batching.advantages import GRPO, LeaveOneOut, NoBaseline, PerTurn
from agentrl_core.batching.credit import TreeCredit
from agentrl_core.batching.group_advantages import group_advantages
from agentrl_core.errors import TrainingError

LINE = {"t1": None, "t2": "t1"}


def named(names, suffix):
    return {f"{child}{suffix}": parent and f"{parent}{suffix}" for child, parent in names.items()}


def test_an_interaction_gets_its_share_of_the_records_advantage(episode, group):
    good, bad = episode(named(LINE, "+"), reward=1.0), episode(named(LINE, "-"), reward=0.0, name="bad")
    found = group_advantages(group([good, bad]), TreeCredit(turn_discount=0.5), LeaveOneOut())
    assert found == pytest.approx({"t1+": 0.5, "t2+": 1.0, "t1-": -0.5, "t2-": -1.0})


def test_the_baseline_is_over_records_not_interactions(episode, group):
    long = episode({f"t{i}": f"t{i - 1}" if i else None for i in range(8)}, reward=1.0)
    short = episode({"s": None}, reward=0.0, name="short")
    found = group_advantages(group([long, short]), TreeCredit(), GRPO(std=False))
    assert set(found.values()) == {0.5, -0.5}


def test_rewards_per_turn_are_compared_as_returns(episode, group):
    first = episode(named(LINE, "+"), reward=1.0, rewards={"t1+": 1.0})
    second = episode(named(LINE, "-"), reward=1.0, rewards={"t2-": 1.0}, name="second")
    found = group_advantages(group([first, second]), TreeCredit(), GRPO(std=False))
    # Returns: (1, 0) and (1, 1); record means 0.5 and 1, baseline 0.75.
    assert found == pytest.approx({"t1+": 0.25, "t2+": -0.75, "t1-": 0.25, "t2-": 0.25})


def test_a_scalar_record_joins_a_group_of_returns_by_its_shares(episode, group):
    by_turn = episode(named(LINE, "+"), reward=3.0, rewards={"t2+": 3.0})
    scalar = episode(named(LINE, "-"), reward=2.0, name="scalar")
    found = group_advantages(group([by_turn, scalar]), TreeCredit(turn_discount=0.5), NoBaseline())
    assert found == {"t1+": 1.5, "t2+": 3.0, "t1-": 1.0, "t2-": 2.0}


def test_what_is_not_trained_has_no_advantage_but_counts_as_a_turn(episode, interaction, group):
    calls = [interaction("a"), interaction("b", parent="a", trainable=False)]
    found = group_advantages(group([episode(calls, reward=2.0)]), TreeCredit(turn_discount=0.5), NoBaseline())
    assert found == {"a": 1.0}


def test_a_record_without_reward_is_refused(episode, group):
    with pytest.raises(TrainingError, match="record record of group group has no reward"):
        group_advantages(group([episode(LINE, reward=None)]), TreeCredit(), NoBaseline())


def test_equal_turns_of_a_group_are_compared(episode, group):
    first = episode(named(LINE, "+"), reward=1.0, rewards={"t1+": 1.0})
    second = episode(named(LINE, "-"), reward=1.0, rewards={"t2-": 1.0}, name="second")
    found = group_advantages(group([first, second]), TreeCredit(), PerTurn(std=False))
    # Returns: (1, 0) and (1, 1).
    assert found == {"t1+": 0.0, "t2+": -0.5, "t1-": 0.0, "t2-": 0.5}


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf")])
def test_a_reward_that_is_no_number_is_refused(episode, group, reward):
    with pytest.raises(TrainingError, match=r"record record of group group has the reward -?(nan|inf), so"):
        group_advantages(group([episode(LINE, reward=reward)]), TreeCredit(), NoBaseline())


class Careless:
    """An estimator and a credit of somebody who writes the first one."""

    def __init__(self, given):
        self._given = given

    def advantages(self, rewards):
        return self._given(rewards)

    turn_advantages = credit = advantages


@pytest.mark.parametrize("by_turn", [False, True])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            lambda found: 1 / 0,
            r"raised ZeroDivisionError: division by zero \(.*test_group_advantages.py:\d+\) on group group of",
        ),
        (
            lambda found: list(found)[1:],
            r"returned .* for group group of task 'task', from .*; expected . and . numbers",
        ),
        (lambda found: None, r"raised TypeError: .* on group group of task 'task'"),
        (lambda found: [["a"] * 2] * 2, r"returned \[\[.* expected . and . numbers"),
    ],
)
def test_an_estimator_that_fails_is_named_with_the_group(episode, group, by_turn, given, said):
    members = group(
        [
            episode(named(LINE, str(index)), name=str(index), rewards={f"t1{index}": 1.0} if by_turn else None)
            for index in range(2)
        ]
    )
    if not by_turn:
        said = said.replace("expected . and . numbers", "expected 2 numbers")
    with pytest.raises(TrainingError, match=f"advantage estimator Careless {said}"):
        group_advantages(members, TreeCredit(), Careless(given))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda episode: 1 / 0, r"raised ZeroDivisionError: .*_advantages.py:\d+\) on group group of task 'task'"),
        (
            lambda episode: {"t1": 1.0},
            r"returned {'t1': 1.0} for record record of group group .* its 2 interactions to",
        ),
        (lambda episode: {"t1": 1.0, "t2": float("nan")}, r"returned {.*nan} for record record of group group"),
        (lambda episode: [1.0, 1.0], r"returned \[1.0, 1.0\] for record record of group group"),
    ],
)
@pytest.mark.parametrize("rewards", [None, {"t1": 1.0}])
def test_a_credit_that_fails_is_named_with_the_record(episode, group, given, said, rewards):
    with pytest.raises(TrainingError, match=f"credit Careless {said}"):
        group_advantages(group([episode(LINE, rewards=rewards)]), Careless(given), NoBaseline())


def test_numbers_of_other_libraries_are_advantages(episode, group):
    found = group_advantages(group([episode(LINE)]), TreeCredit(), Careless(np.array))
    assert found == {"t1": 1.0, "t2": 1.0}
    assert {type(value) for value in found.values()} == {float}
