import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core import hookimpl
from agentrl_core.batching.advantages import GRPO, AgentCPM, DrGRPO, LeaveOneOut
from agentrl_core.batching.credit import TreeCredit
from agentrl_core.batching.filters import ZeroVariance
from agentrl_core.batching.shaping import Affine, FunctionShaping, Malformed, Overlong, Rank, as_shaping
from agentrl_core.batching.signal import Signal, finished, training_signal
from agentrl_core.config.component import Component
from agentrl_core.errors import ConfigError, PluginError, TrainingError
from agentrl_testing.plugins import isolated_plugins


@pytest.fixture
def members(episode, interaction, group):
    """A group of records, each given by its reward and the number of tokens of each of its calls."""

    def make(*records, **fields):
        episodes = []
        for index, (reward, lengths) in enumerate(records):
            calls = [
                interaction(f"r{index}c{turn}", parent=f"r{index}c{turn - 1}" if turn else None, output=[7] * length)
                for turn, length in enumerate(lengths)
            ]
            episodes.append(episode(calls, reward=reward, name=f"r{index}"))
        return attrs.evolve(group(episodes), **fields)

    return make


def shaped(shaping, group):
    return list(shaping.shape(group, [episode.record.reward for episode in group.episodes]))


def signal(groups, *shaping, advantage=None, filters=()):
    return training_signal(
        groups, credit=TreeCredit(), advantage=advantage or DrGRPO(), filters=filters, shaping=shaping
    )


@pytest.mark.parametrize(
    ("length", "punishment"),
    [(1, 0.0), (60, 0.0), (61, 0.025), (80, 0.5), (99, 0.975), (100, 1.0), (101, 1.0), (500, 1.0)],
)
def test_overlong_is_dapos_equation(members, length, punishment):
    overlong = Overlong(max_tokens=100, buffer_tokens=40)
    assert shaped(overlong, members((1.0, [length]))) == pytest.approx([1.0 - punishment], abs=1e-15)
    halved = attrs.evolve(overlong, penalty=0.5)
    assert shaped(halved, members((-1.0, [length]))) == pytest.approx([-1.0 - punishment / 2], abs=1e-15)


def test_overlong_counts_what_the_policy_sampled_in_a_record_or_in_a_call(members, interaction, episode, group):
    two = members((0.0, [50, 40]))
    assert shaped(Overlong(max_tokens=100, buffer_tokens=40), two) == [-0.75]
    assert shaped(Overlong(max_tokens=60, buffer_tokens=40, of="call"), two) == [-0.75]
    foreign = group([episode([interaction("a", output=[1] * 99, trainable=False)], reward=0.0)])
    assert shaped(Overlong(max_tokens=100, buffer_tokens=40), foreign) == [0.0]
    assert shaped(Overlong(max_tokens=100, buffer_tokens=40, of="call"), foreign) == [0.0]


def test_overlong_needs_a_buffer_within_its_limit():
    with isolated_plugins() as registry:
        built = registry.build("shapings", Component("overlong", {"max_tokens": 9, "buffer_tokens": 9}))
        assert built == Overlong(max_tokens=9, buffer_tokens=9)
        with pytest.raises(ConfigError, match=r"shaping.buffer_tokens: overlong: .*at most max_tokens \(9\)"):
            registry.build("shapings", Component("overlong", {"max_tokens": 9, "buffer_tokens": 10}), where="shaping")


def test_rank_is_agentrls(members):
    # Right: 1, 3, 3 and 7 calls: ranks 0, 1.5, 1.5, 3 in steps of 0.2 / 3. Wrong: 2, 4 and 6 calls, longer is better.
    group = members(*[(reward, [1] * calls) for reward, calls in RANKED])
    assert shaped(Rank(), group) == pytest.approx([1.1, 1.0, 1.0, 0.9, -0.1, 0.0, 0.1], abs=1e-15)


RANKED = [(1.0, 1), (1.0, 3), (1.0, 3), (1.0, 7), (0.0, 2), (0.0, 4), (0.0, 6)]


def slow_rank(rewards, lengths, spread):
    """The bonuses by sorting: positions from -1 to 1, those of equal lengths averaged."""
    bonuses = [0.0] * len(rewards)
    for right in (True, False):
        side = sorted((length, i) for i, length in enumerate(lengths) if (rewards[i] >= 0.5) == right)
        for length, i in side if len(side) > 1 else ():
            ranks = [rank for rank, (other, _) in enumerate(side) if other == length]
            place = 2 * (sum(ranks) / len(ranks)) / (len(side) - 1) - 1
            bonuses[i] = -spread * place if right else spread * place
    return bonuses


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.49, 0.5, 1.0]), st.integers(1, 6)), min_size=1, max_size=8))
def test_rank_is_what_sorting_says(records):
    from agentrl_testing.episodes import made_up_episode, made_up_group

    group = made_up_group([reward for reward, _ in records])
    episodes = tuple(
        made_up_episode([None] * calls, reward=reward, index=index) for index, (reward, calls) in enumerate(records)
    )
    group = attrs.evolve(group, episodes=episodes)
    rewards, lengths = [reward for reward, _ in records], [calls for _, calls in records]
    wanted = [reward + bonus for reward, bonus in zip(rewards, slow_rank(rewards, lengths, 0.25), strict=True)]
    assert shaped(Rank(spread=0.25), group) == pytest.approx(wanted, abs=1e-14)


def test_rank_may_count_tokens_and_judges_by_the_reward_as_given(members):
    group = members((1.0, [5]), (1.0, [2, 2]), (0.0, [9]))
    assert shaped(Rank(by="tokens"), group) == pytest.approx([0.9, 1.1, 0.0])
    assert shaped(Rank(), group) == pytest.approx([1.1, 0.9, 0.0])
    assert Rank(by="tokens").shape(group, [0.2, 0.2, 0.9]) == pytest.approx([0.1, 0.3, 0.9])


def test_a_shaped_reward_is_what_the_baseline_sees(members):
    group = members((1.0, [1]), (1.0, [1, 1]), (0.0, [1]))
    found = signal([group], Rank(), advantage=LeaveOneOut())
    # Shaped: 1.1, 0.9, 0.
    assert found.advantages["r0c0"] == pytest.approx(1.1 - 0.45)
    assert found.advantages["r1c0"] == found.advantages["r1c1"] == pytest.approx(0.9 - 0.55)
    assert found.advantages["r2c0"] == pytest.approx(-1.0)
    assert found.shaped == pytest.approx({"r0": 1.1, "r1": 0.9, "r2": 0.0})
    assert [episode.record.reward for episode in found.sampled[0].episodes] == [1.0, 1.0, 0.0]


def test_rank_gives_equal_records_of_different_length_a_signal(members):
    group = members((1.0, [1]), (1.0, [1, 1]))
    assert signal([group], filters=[ZeroVariance()]).dropped == {"zero_variance": 1}
    assert signal([group], Rank(), filters=[ZeroVariance()]).advantages == pytest.approx(
        {"r0c0": 0.1, "r1c0": -0.1, "r1c1": -0.1}
    )
    assert signal([group], Rank(), filters=[ZeroVariance(min_range=0.1)]).dropped == {"zero_variance": 1}


def test_shapings_follow_each_other(members):
    group = members((1.0, [80]), (0.0, [10]))
    overlong, affine = Overlong(max_tokens=100, buffer_tokens=40), Affine(bias=1.0, scale=2.0, clip=2.5)
    assert signal([group], overlong, affine).shaped == {"r0": 2.5, "r1": 2.0}
    assert signal([group], affine, overlong).shaped == {"r0": 2.0, "r1": 2.0}
    assert signal([group]).shaped == {}


def test_affine_is_clipped_on_both_sides(members):
    group = members((4.0, [1]), (-4.0, [1]), (0.5, [1]))
    assert signal([group], Affine(scale=2.0, clip=3.0)).shaped == {"r0": 3.0, "r1": -3.0, "r2": 1.0}


def test_rewards_of_turns_are_shaped_by_what_their_sum_changes(episode, group):
    paid = episode({"a": None, "b": "a"}, reward=3.0, rewards={"a": 1.0, "b": 2.0})
    other = episode({"c": None}, reward=0.0, name="other")
    found = training_signal(
        [group([paid, other])],
        credit=TreeCredit(turn_discount=0.5),
        advantage=DrGRPO(),
        filters=(),
        shaping=[as_shaping(lambda group, rewards: [rewards[0] - 1.0, rewards[1] + 4.0], "mine")],
    )
    # Returns a: 1 + 0.5 * 2 - 0.5 * 1, b: 2 - 1, c: 4; the baseline is the mean of 1.25 and 4.
    assert found.advantages == {"a": 1.5 - 2.625, "b": 1.0 - 2.625, "c": 4.0 - 2.625}


@pytest.mark.parametrize(
    "value", [[1.0], [1.0, float("nan")], [1.0, float("inf")], None, 1.0, ["a", "b"], {1: 2, 3: 4}]
)
def test_a_shaping_must_give_every_record_a_finite_reward(members, value):
    group = members((1.0, [1]), (0.0, [1]))
    with pytest.raises(TrainingError, match=r"shaping 'mine' returned .* for group group of task 'task'; expected 2"):
        signal([group], as_shaping(lambda group, rewards: value, "mine"))


def test_a_shaping_that_raises_stops_the_run_with_its_name(members):
    def careless(group, rewards):
        return rewards[9]

    with pytest.raises(TrainingError, match=r"'careless' raised IndexError: .*test_shaping.py:\d+\) on group group of"):
        signal([members((1.0, [1]))], as_shaping(careless, "careless"))


def test_a_malformed_call_never_gains(members):
    group = members((1.0, [1, 1]), (0.0, [1, 1]))
    broken = tuple(
        attrs.evolve(item, interactions=(attrs.evolve(item.interactions[0], tool_errors=1), *item.interactions[1:]))
        for item in group.episodes
    )
    group = attrs.evolve(group, episodes=broken)
    found = signal([group], Malformed(), advantage=AgentCPM(scale=2.0))
    assert found.advantages == {"r0c0": 2.0, "r0c1": 2.0, "r1c0": -2.0, "r1c1": -2.0}
    final = finished(found, advantage=AgentCPM(), shaping=[Malformed()])
    assert final.advantages == {"r0c0": 0.0, "r0c1": 2.0, "r1c0": -2.0, "r1c1": -2.0}
    assert final.with_signal == 1


@pytest.mark.parametrize("value", [{}, {"r0c0": float("nan"), "r1c0": 0.0}, {"r0c0": "a", "r1c0": 0.0}, None])
def test_a_shaping_must_bound_every_advantage_by_a_finite_number(members, value):
    class Odd(Malformed):
        def bound(self, group, advantages):
            return value

    found = signal([members((1.0, [1]), (0.0, [1]))])
    with pytest.raises(TrainingError, match=r"shaping 'Odd' (raised|returned) .* group group"):
        finished(found, advantage=DrGRPO(), shaping=[Odd()])


def test_shaped_rewards_of_groups_are_joined(members):
    first, second = (signal([members((1.0, [1]), index=index)], Affine(bias=float(index))) for index in range(2))
    assert Signal.joined([second]).shaped == {"r0": 2.0}
    assert Signal.joined([first]).shaped == {"r0": 1.0}


def test_a_function_of_something_else_is_refused():
    async def later(group, rewards):
        return rewards

    for function in (lambda: None, lambda group: [], lambda a, b, c: [], later):
        with pytest.raises(PluginError, match=r"config.yaml:3: shaping.0: expected a shaping shape\(group, rewards\)"):
            as_shaping(function, "odd", where="config.yaml:3: shaping.0")
    assert as_shaping(Rank(), "rank") == Rank()


class Package:
    """A plugin package."""

    @hookimpl
    def register_shapings(self, register):
        register("thrift", thrift, summary="takes off what calls cost")


def thrift(group, rewards, *, cost: float = 0.1):
    calls = [len(episode.interactions) for episode in group.episodes]
    return [reward - cost * count for reward, count in zip(rewards, calls, strict=True)]


def test_a_packages_shaping_is_named_in_the_config_with_its_options(members):
    with isolated_plugins(Package()) as registry:
        built = as_shaping(registry.build("shapings", Component("thrift", {"cost": 0.5})), "thrift")
    assert isinstance(built, FunctionShaping)
    assert signal([members((1.0, [1, 1]), (1.0, [1]))], built).advantages == {
        "r0c0": -0.25,
        "r0c1": -0.25,
        "r1c0": 0.25,
    }


@given(st.permutations(range(4)))
def test_the_order_of_the_records_changes_nothing(order):
    from agentrl_testing.episodes import made_up_episode, made_up_group

    records = [(1.0, 1), (1.0, 4), (0.0, 2), (0.0, 3)]
    whole = attrs.evolve(
        made_up_group([1.0]),
        episodes=tuple(
            made_up_episode([None] * calls, reward=reward, index=index) for index, (reward, calls) in enumerate(records)
        ),
    )
    turned = attrs.evolve(whole, episodes=tuple(whole.episodes[index] for index in order))
    chain = [Rank(), Overlong(max_tokens=8, buffer_tokens=6), Affine(scale=0.5)]
    found = [
        training_signal([group], credit=TreeCredit(), advantage=GRPO(), filters=(), shaping=chain).advantages
        for group in (whole, turned)
    ]
    assert found[0] == found[1]
