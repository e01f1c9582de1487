import pytest

from agentrl_core.batching.advantages import GRPO, LeaveOneOut, NoBaseline, PerTurn
from agentrl_core.batching.baseline import group_advantages
from agentrl_core.batching.credit import TreeCredit
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
