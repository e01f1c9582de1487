import attrs
import pytest

from agentrl_core.batching.advantages import GRPO, LeaveOneOut, NoBaseline
from agentrl_core.batching.credit import TreeCredit
from agentrl_core.batching.filters import ZeroVariance
from agentrl_core.batching.signal import group_advantages, training_signal
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


def signal(groups, filters=None):
    filters = [ZeroVariance()] if filters is None else filters
    return training_signal(groups, credit=TreeCredit(), advantage=GRPO(), filters=filters)


def test_a_group_without_variance_is_dropped_and_counted(episode, group):
    flat = group([episode({"a": None}, reward=1.0), episode({"b": None}, reward=1.0)], name="flat")
    steep = group([episode({"c": None}, reward=1.0), episode({"d": None}, reward=0.0)], name="steep")
    found = signal([flat, steep])
    assert [item.id for item in found.groups] == ["steep"]
    assert set(found.advantages) == {"c", "d"}
    assert found.dropped == {"zero_variance": 1}
    assert found.with_signal == 1


@pytest.mark.parametrize(("tolerance", "kept"), [(0.04, True), (0.06, False)])
def test_advantages_within_the_tolerance_are_no_variance(episode, group, tolerance, kept):
    close = group([episode({"a": None}, reward=0.1), episode({"b": None}, reward=0.0, name="other")])
    found = training_signal(
        [close], credit=TreeCredit(), advantage=GRPO(std=False), filters=[ZeroVariance(tolerance=tolerance)]
    )
    assert bool(found.groups) == kept


def test_turns_that_differ_inside_equal_records_are_a_signal(episode, group):
    members = [
        episode(named(LINE, str(i)), reward=1.0, rewards={f"t1{i}": -1.0, f"t2{i}": 2.0}, name=f"r{i}")
        for i in range(2)
    ]
    assert signal([group(members)]).with_signal == 1


def test_without_filters_a_flat_group_stays_but_has_no_signal(episode, group):
    flat = group([episode({"a": None}, reward=1.0), episode({"b": None}, reward=1.0)])
    found = signal([flat], filters=())
    assert len(found.groups) == 1
    assert found.with_signal == 0


def test_a_group_with_nothing_to_train_is_dropped(episode, interaction, group):
    upstream = group([episode([interaction("a", trainable=False)], reward=1.0)])
    assert signal([upstream], filters=()).dropped == {"nothing_to_train": 1}


def test_the_first_filter_that_refuses_is_counted(episode, group):
    @attrs.frozen
    class Never:
        reason = "never"

        def keep(self, group, advantages):
            return False

    flat = group([episode({"a": None}, reward=1.0), episode({"b": None}, reward=1.0)])
    assert signal([flat], filters=(Never(), ZeroVariance())).dropped == {"never": 1}
