import functools
from collections import Counter

import attrs
import numpy as np
import pytest

from agentrl_core import hookimpl
from agentrl_core.batching.advantages import NoBaseline
from agentrl_core.batching.credit import TreeCredit
from agentrl_core.batching.filters import BalanceSample, FunctionFilter, MinTurns, Overlong, ZeroVariance, as_filter
from agentrl_core.batching.signal import Signal, training_signal
from agentrl_core.config.component import Component
from agentrl_core.errors import PluginError, TrainingError
from agentrl_core.types import FinishReason
from agentrl_testing.plugins import isolated_plugins


@pytest.fixture
def members(episode, group):
    """A group of one-call records with the given rewards; record i is `r<i>`, its call `c<i>`."""

    def make(*rewards, index=0):
        episodes = [episode({f"c{i}": None}, reward=float(reward), name=f"r{i}") for i, reward in enumerate(rewards)]
        return attrs.evolve(group(episodes, name=f"g{index}"), index=index)

    return make


def signal(groups, *filters):
    return training_signal(groups, credit=TreeCredit(), advantage=NoBaseline(), filters=filters)


@pytest.mark.parametrize(
    ("rewards", "kept"), [((0.5, 0.55, 0.59), False), ((0.0, 0.1), True), ((0.0, 0.2), True), ((1.0, 1.0), False)]
)
def test_records_that_differ_by_less_than_the_range_are_no_signal(members, rewards, kept):
    assert ZeroVariance(min_range=0.1).keep(members(*rewards), {"c0": 1.0}) is kept


def test_without_a_range_the_least_difference_is_a_signal(members):
    assert ZeroVariance().keep(members(0.5, 0.50001), {"c0": -5e-6, "c1": 5e-6})


@pytest.mark.parametrize(
    ("rewards", "wrong", "right"),
    [
        ((0, 0, 0, 0, 0, 0, 1, 1), 3, 2),  # 2 + 1 of the wrong, 2 + 2 of the right: all
        ((0, 0, 1, 1, 1, 1, 1, 1), 2, 4),
        ((0, 0, 0, 0, 1, 1, 1, 1), 4, 4),
        ((0, 1), 1, 1),
        ((0, 0, 0, 0), 1, 0),
        ((1, 1, 1, 1), 0, 2),
    ],
)
def test_balance_keeps_about_as_many_wrong_records_as_right_ones(members, rewards, wrong, right):
    kept = BalanceSample().keep(members(*rewards), {})
    assert Counter(rewards[int(name[1:])] for name in kept) == Counter({0: wrong, 1: right})


def test_the_draw_follows_from_the_seed_and_the_group(members):
    rewards = (0,) * 12 + (1,)
    draws = {frozenset(BalanceSample(seed=seed).keep(members(*rewards), {})) for seed in range(20)}
    assert len(draws) > 5
    assert BalanceSample().keep(members(*rewards), {}) == BalanceSample().keep(members(*rewards), {})
    assert len({frozenset(BalanceSample().keep(members(*rewards, index=i), {})) for i in range(20)}) > 5


@pytest.fixture
def cut(episode, interaction, group):
    """A group of records, each given by the finish reasons of its calls; record i is `r<i>`, rewarded with i."""

    def make(*records, **fields):
        episodes = [
            episode(
                [interaction(f"r{i}c{n}", finish_reason=FinishReason(why), **fields) for n, why in enumerate(reasons)],
                reward=float(i),
                name=f"r{i}",
            )
            for i, reasons in enumerate(records)
        ]
        return group(episodes)

    return make


def test_records_that_were_cut_are_left_out_and_counted(cut):
    group = cut(["stop"], ["stop", "length"], ["length", "stop"], ["stop", "abort"], ["stop"])
    found = signal([group], Overlong())
    assert [episode.record.id for episode in found.groups[0].episodes] == ["r0", "r3", "r4"]
    assert (found.left_out, found.dropped) == ({"overlong": 2}, {})
    assert set(found.advantages) == {"r0c0", "r3c0", "r4c0"}
    assert signal([cut(["length"], ["length"])], Overlong()).dropped == {"overlong": 1}


def test_a_call_of_another_model_cuts_no_record(cut):
    assert Overlong().keep(cut(["length"], trainable=False), {}) == {"r0"}


def test_some_of_the_cut_records_may_be_kept(cut):
    group = cut(["stop"], ["length"], ["length"], ["length"])
    kept = Overlong(reserve=2).keep(group, {})
    assert "r0" in kept
    assert len(kept) == 3
    assert Overlong(reserve=2).keep(group, {}) == kept
    assert len({frozenset(Overlong(reserve=1, seed=seed).keep(group, {})) for seed in range(20)}) == 3
    assert Overlong(reserve=9).keep(group, {}) == {"r0", "r1", "r2", "r3"}


def test_what_was_right_at_once_may_be_left_out(cut):
    group = cut(["stop"], ["stop"], ["stop", "stop"], ["stop", "stop", "stop"])
    assert MinTurns().keep(group, {}) == {"r0", "r2", "r3"}
    assert MinTurns(turns=2).keep(group, {}) == {"r0", "r3"}
    assert MinTurns(turns=2, right_above=2.5).keep(group, {}) == {"r0", "r1", "r2", "r3"}
    assert MinTurns(turns=0).keep(group, {}) == {"r0", "r1", "r2", "r3"}


def test_records_that_a_filter_leaves_out_keep_their_place_in_the_baseline(members):
    @attrs.frozen
    class Best:
        reason = "best"

        def keep(self, group, advantages):
            return {max(group.episodes, key=lambda item: item.record.reward).record.id}

    found = signal([members(0.0, 0.25, 1.0)], Best())
    assert found.advantages == {"c2": 1.0}
    assert [episode.record.id for episode in found.groups[0].episodes] == ["r2"]
    assert len(found.sampled[0].episodes) == 3
    assert found.left_out == {"best": 2}
    assert found.dropped == {}


def test_later_filters_see_what_earlier_ones_left(members):
    seen = []

    def look(group):
        seen.append([episode.record.id for episode in group.episodes])
        return True

    signal([members(0, 0, 0, 1)], BalanceSample(), as_filter(look, "look"))
    assert len(seen[0]) == 3


def test_a_filter_that_keeps_no_record_drops_the_group(members):
    found = signal([members(0, 1)], as_filter(lambda group: [], "mine.py:none_of_it"))
    assert (found.groups, found.dropped) == ((), {"none_of_it": 1})


def test_a_filter_sees_the_whole_group(members, interaction, episode, group):
    turn = interaction("t", prompt=(5, 6), output=(7, 8), versions=[3, 3])
    whole = group([episode([turn], reward=0.5)])

    def look(seen, advantages, *, least=0.0):
        (only,) = seen.episodes
        (call,) = only.interactions
        assert (call.prompt_ids, call.output_ids, call.versions) == ((5, 6), (7, 8), ((3, 2),))
        assert advantages == {"t": 0.5}
        return only.record.reward > least

    assert signal([whole], as_filter(look, "look")).dropped == {}
    assert signal([whole], as_filter(functools.partial(look, least=0.9), "my.mod.look")).dropped == {"look": 1}


def test_a_filter_that_raises_stops_the_run_with_its_name(members):
    def careless(group):
        return group.episodes[7].record.reward > 0

    with pytest.raises(
        TrainingError, match=r"filter 'careless' raised IndexError: .*test_filters.py:\d+\) on group g0"
    ):
        signal([members(0, 1)], as_filter(careless, "my.mod.careless"))


@pytest.mark.parametrize("value", [None, 1, "r0", {"r0": 1}])
def test_a_filter_must_say_what_it_means(members, value):
    with pytest.raises(TrainingError, match=r"filter 'odd' returned .* for group g0; expected True, False or the ids"):
        signal([members(0, 1)], as_filter(lambda group: value, "odd"))


def test_a_filter_may_keep_no_record_of_another_group(members):
    with pytest.raises(TrainingError, match="filter 'odd' keeps 'r9', which is no record of group g0"):
        signal([members(0, 1)], as_filter(lambda group: ["r9"], "odd"))


def test_numpys_truth_is_a_verdict(members):
    assert signal([members(0, 1)], as_filter(lambda group: np.bool_(False), "numpys")).dropped == {"numpys": 1}


def test_a_function_of_something_else_is_refused():
    async def later(group):
        return True

    for function in (lambda: True, lambda a, b, c: True, later):
        with pytest.raises(PluginError, match=r"config.yaml:3: filters.0: expected a filter keep\(group\)"):
            as_filter(function, "odd", where="config.yaml:3: filters.0")
    assert as_filter(ZeroVariance(), "zero_variance") == ZeroVariance()


def test_a_filter_without_a_reason_is_counted_under_its_class(members):
    class TooEasy:
        def keep(self, group, advantages):
            return False

    assert signal([members(0, 1)], TooEasy()).dropped == {"TooEasy": 1}


class Package:
    """A plugin package."""

    @hookimpl
    def register_filters(self, register):
        register("too_easy", TooEasy, summary="drops groups with a mean above a limit")
        register("few", few, summary="drops small groups")


@attrs.frozen(kw_only=True)
class TooEasy:
    limit: float = 0.9
    reason = "too_easy"

    def keep(self, group, advantages):
        rewards = [episode.record.reward for episode in group.episodes]
        return sum(rewards) / len(rewards) <= self.limit


def few(group, *, least: int = 2):
    return len(group.episodes) >= least


def test_a_packages_filters_are_named_in_the_config_with_their_options(members, tmp_path):
    (tmp_path / "mine.py").write_text("def odd(group):\n    return len(group.episodes) % 2 == 1\n", encoding="utf-8")
    with isolated_plugins(Package()) as registry:
        components = [
            Component("too_easy", {"limit": 0.5}),
            Component("Package/few", {"least": 3}),
            Component(f"{tmp_path / 'mine.py'}:odd"),
            Component("balance_sample"),
        ]
        filters = [as_filter(registry.build("filters", item), item.use) for item in components]
    assert isinstance(filters[0], TooEasy)
    assert [type(item) for item in filters[1:3]] == [FunctionFilter, FunctionFilter]
    found = signal([members(1, 1, 0), members(0, 0), members(0, 0, 0, 0), members(0, 0, 1)], *filters)
    assert found.dropped == {"too_easy": 1, "few": 1, "odd": 1}
    assert [group.id for group in found.groups] == ["g0"]


def test_signals_are_joined_in_the_order_of_submission(members):
    parts = [signal([members(*rewards, index=index)], ZeroVariance()) for index, rewards in ((2, (0, 1)), (0, (0, 0)))]
    parts.append(signal([members(0, 0, 1, index=1)], BalanceSample()))
    found = Signal.joined(parts)
    assert [group.index for group in found.sampled] == [0, 1, 2]
    assert [group.index for group in found.groups] == [1, 2]
    assert (found.dropped, found.with_signal, found.left_out) == ({"zero_variance": 1}, 2, {})
    assert Signal.joined([]).sampled == ()
