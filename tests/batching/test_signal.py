import attrs
import numpy as np
import pytest

from agentrl_core.batching.advantages import GRPO, LeaveOneOut, NoBaseline, Norm, PerTurn, ReinforcePP
from agentrl_core.batching.credit import TreeCredit
from agentrl_core.batching.filters import ZeroVariance, as_filter
from agentrl_core.batching.signal import Signal, finished, training_signal
from agentrl_core.errors import TrainingError

LINE = {"t1": None, "t2": "t1"}


def named(names, suffix):
    return {f"{child}{suffix}": parent and f"{parent}{suffix}" for child, parent in names.items()}


def group_advantages(group, credit, advantage):
    return training_signal([group], credit=credit, advantage=advantage, filters=()).advantages


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


class Given:
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
            r"raised ZeroDivisionError: division by zero \(.*test_signal.py:\d+\) on group group of",
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
    with pytest.raises(TrainingError, match=f"advantage estimator Given {said}"):
        group_advantages(members, TreeCredit(), Given(given))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda episode: 1 / 0, r"raised ZeroDivisionError: .*_signal.py:\d+\) on group group of task 'task'"),
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
    with pytest.raises(TrainingError, match=f"credit Given {said}"):
        group_advantages(group([episode(LINE, rewards=rewards)]), Given(given), NoBaseline())


def test_numbers_of_other_libraries_are_advantages(episode, group):
    found = group_advantages(group([episode(LINE)]), TreeCredit(), Given(np.array))
    assert found == {"t1": 1.0, "t2": 1.0}
    assert {type(value) for value in found.values()} == {float}


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


def pair(episode, group, index, *, calls=1, rewards=(1.0, 0.0)):
    """A group of records with `calls` calls each, `<name><turn>`: a right one and a wrong one."""
    episodes = [
        episode(
            {f"{name}{index}{turn}": f"{name}{index}{turn - 1}" if turn else None for turn in range(calls)},
            reward=reward,
            name=f"{name}{index}",
        )
        for name, reward in zip("rw", rewards, strict=True)
    ]
    return attrs.evolve(group(episodes, name=f"g{index}"), index=index)


def whole(groups, advantage, filters=(), credit=None):
    """Judge each group alone, join them, and finish the step."""
    parts = [
        training_signal([item], credit=credit or TreeCredit(), advantage=advantage, filters=filters) for item in groups
    ]
    return finished(Signal.joined(parts), advantage=advantage)


def test_a_step_is_normalised_over_the_groups_that_passed(episode, group):
    groups = [pair(episode, group, 0), pair(episode, group, 1, rewards=(3.0, 0.0)), pair(episode, group, 2)]
    found = whole(groups, ReinforcePP(eps=1e-300), [as_filter(lambda group: group.index != 2, "not_2")])
    # Deviations 0.5 and 1.5, twice: squares 2 * (0.25 + 2.25) over three degrees of freedom.
    root = (5 / 3) ** 0.5
    assert found.advantages == pytest.approx(
        {"r00": 0.5 / root, "w00": -0.5 / root, "r10": 1.5 / root, "w10": -1.5 / root}, rel=1e-14
    )
    assert found.dropped == {"not_2": 1}


def test_what_a_step_makes_of_its_groups_does_not_depend_on_their_arrival(episode, group):
    groups = [pair(episode, group, index, calls=index + 1, rewards=(index * 0.3, 0.1)) for index in range(4)]
    credit = TreeCredit(turn_discount=0.7)
    advantage = ReinforcePP()
    assert whole(groups, advantage, credit=credit) == whole(groups[::-1], advantage, credit=credit)
    at_once = training_signal(groups, credit=credit, advantage=advantage, filters=())
    assert finished(at_once, advantage=advantage).advantages == whole(groups, advantage, credit=credit).advantages


def test_filters_see_what_the_group_gave(episode, group):
    seen = {}

    def look(group, advantages):
        seen.update(advantages)
        return True

    whole([pair(episode, group, 0), pair(episode, group, 1)], ReinforcePP(), [as_filter(look, "look")])
    assert seen == {"r00": 0.5, "w00": -0.5, "r10": 0.5, "w10": -0.5}


def test_a_step_weighs_records_by_their_shares_of_calls_and_tokens(episode, interaction, group):
    long = episode([interaction("a", output=(1, 2, 3)), interaction("b", output=(4,))], reward=1.0)
    short = episode([interaction("c", output=(5, 6))], reward=0.0, name="short")
    step = [group([long, short])]
    raw = Norm(mean_level="batch", std_level=None)
    assert whole(step, raw).advantages == {"a": 0.5, "b": 0.5, "c": -0.5}
    by_token = whole(step, attrs.evolve(raw, weigh="token")).advantages
    assert by_token == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": -2 / 3}, rel=1e-15)


def test_groups_that_are_flat_alone_have_a_signal_in_the_step(episode, group):
    groups = [pair(episode, group, 0, rewards=(1.0, 1.0)), pair(episode, group, 1, rewards=(0.0, 0.0))]
    found = whole(groups, ReinforcePP(baseline=False, eps=1e-300))
    assert found.with_signal == 2
    assert found.advantages["r00"] == found.advantages["w00"] == pytest.approx(0.5 / (1 / 3) ** 0.5, rel=1e-14)


def test_an_estimator_of_groups_leaves_a_step_as_it_is(episode, group):
    groups = [pair(episode, group, 0)]
    judged = training_signal(groups, credit=TreeCredit(), advantage=GRPO(), filters=())
    assert finished(judged, advantage=GRPO()) == judged
    assert finished(Signal.joined([]), advantage=ReinforcePP()).advantages == {}


def test_an_advantage_that_is_no_number_is_refused_with_where_it_came_from(episode, group):
    @attrs.frozen
    class Careless(NoBaseline):
        def advantages(self, rewards):
            return [float("nan") for _ in rewards]

        def normalise(self, calls):
            return [float("inf") for _ in calls]

    step = [pair(episode, group, 0)]
    with pytest.raises(
        TrainingError,
        match=r"Careless gave interaction r00 of group g0 \(task 'task'\) the advantage nan, .* 1.0, 0.0;",
    ):
        training_signal(step, credit=TreeCredit(), advantage=Careless(), filters=())
    judged = training_signal(step, credit=TreeCredit(), advantage=NoBaseline(), filters=())
    with pytest.raises(TrainingError, match=r"estimator Careless returned \[inf, inf\] for a step; expected 2 finite"):
        finished(judged, advantage=Careless())

    @attrs.frozen
    class Raising(NoBaseline):
        def normalise(self, calls):
            return calls[99]

    with pytest.raises(TrainingError, match=r"estimator Raising raised IndexError: .*test_signal.py:\d+\) on a step"):
        finished(judged, advantage=Raising())
