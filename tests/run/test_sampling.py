"""The groups of a step, collected through the operations of a sampling side that is no process at all."""

import math

import attrs
import pytest
from tests.run.test_versions import make_group, published

from agentrl_core.batching.group_orders import Fifo
from agentrl_core.batching.signal import Signal
from agentrl_core.config.sampling_sections import RolloutConfig
from agentrl_core.run.group_ranking import GroupRanking
from agentrl_core.run.sampling import BatchCollector
from agentrl_core.run.versions import TokenAges
from agentrl_core.types import Group


class Prepared:
    """Sampling whose groups are there at once; it counts what it is asked to replace."""

    def __init__(self):
        self.taken, self.replaced, self.asked = 0, 0, []

    def take_groups(self, count, ahead):
        assert ahead.step == 7
        self.taken += count
        self.asked.append((count, ahead.more))
        indices = range(self.taken - count, self.taken)
        return [Group(id=f"g{index}", run_id="run", task_id="task", index=index, episodes=()) for index in indices]

    def replace(self, groups):
        self.replaced += groups


@attrs.frozen
class Dropping:
    """Learner whose filters drop the groups with these indices."""

    dropped: frozenset

    def training_signal(self, groups):
        kept = tuple(group for group in groups if group.index not in self.dropped)
        dropped = {"flat": len(groups) - len(kept)} if len(kept) < len(groups) else {}
        return Signal(sampled=tuple(groups), groups=kept, advantages={}, dropped=dropped, with_signal=len(kept))


@attrs.frozen
class Ages:
    """Ages of groups by their index; the others are new."""

    old: dict

    def oldest(self, group):
        return self.old.get(group.index, 0)

    def of_trained(self, signal):
        return {}

    def aligned(self, group):
        return group


def collector_of(dropped, old=None, notices=None, **rollout):
    sampling, config = Prepared(), RolloutConfig(tasks_per_step=3, **rollout)
    learner = Dropping(frozenset(dropped))
    notice = (notices if notices is not None else []).append
    collector = BatchCollector(
        sampling, learner, config, ages=Ages(old or {}), notice=notice, ranking=GroupRanking(Fifo())
    )
    return sampling, collector


def collected(dropped, **rollout):
    notices = []
    sampling, collector = collector_of(dropped, notices=notices, **rollout)
    signal, metrics = collector.collect(7)
    assert metrics.pop("time/train_idle_s") >= 0.0
    assert (metrics.pop("rollout/groups_stale"), metrics.pop("rollout/tokens_discarded")) == (0.0, 0.0)
    return [group.index for group in signal.groups], metrics, sampling.replaced, dict(collector.totals), notices


def test_without_dynamic_sampling_a_step_takes_its_groups_at_once():
    assert collected({1}) == ([0, 2], {}, 0, {"dropped(flat)": 1}, [])


def test_each_dropped_group_is_replaced():
    totals = {"topped_up": 2, "dropped(flat)": 2}
    assert collected({0, 3}, dynamic_sampling=True) == ([1, 2, 4], {"rollout/groups_topped_up": 2.0}, 2, totals, [])


@pytest.mark.parametrize("most", [1.0, 1.5, 2.0])
def test_no_more_groups_are_sampled_than_the_limit_allows(most):
    kept, metrics, replaced, _, notices = collected(range(99), dynamic_sampling=True, max_oversampling=most)
    assert kept == []
    assert replaced == metrics["rollout/groups_topped_up"] == math.floor(3 * most) - 3
    assert len(notices) == 1
    assert f"{math.floor(3 * most)} groups were sampled, but only 0 of the 3" in notices[0]


@pytest.mark.parametrize("bound", [0, 2])
def test_groups_that_are_too_old_are_replaced_by_fresh_ones(bound):
    """Of the first three groups one is too old, and so is the one that comes in its place."""
    old = {1: bound + 1, 2: bound, 3: bound + 5}
    sampling, collector = collector_of((), old, max_head_offpolicyness=bound)
    signal, metrics = collector.collect(7)
    assert [group.index for group in signal.groups] == [0, 2, 4]
    assert [group.index for group in signal.sampled] == [0, 1, 2, 3, 4]  # the step names all that it has taken
    assert (sampling.asked, sampling.replaced) == ([(3, 0), (1, 0), (1, 0)], 2)
    assert (signal.dropped, metrics["rollout/groups_stale"]) == ({"stale": 2}, 2.0)
    assert collector.totals == {"dropped(stale)": 2}


@pytest.mark.parametrize(("steps", "bad"), [((0, 1, 2, 2, 3, 4), 1), ((0, 1, 2, 3, 2, 3), 3)])
def test_after_a_resumption_groups_are_judged_by_the_versions_that_sampled_their_tokens(steps, bad):
    """In the first run version 1 lags three steps, in the second one version 3 is void."""

    class Sampled(Prepared):
        def take_groups(self, count, ahead):
            taken = super().take_groups(count, ahead)
            return [make_group([(bad if group.index == 1 else 5, 1)], index=group.index) for group in taken]

    _, collector = collector_of((), max_head_offpolicyness=2)
    collector._sampling, collector._ages = Sampled(), TokenAges(published(*steps))
    signal, _ = collector.collect(7)
    assert [group.index for group in signal.groups] == [0, 2, 3]
    assert signal.dropped == {"stale": 1}


def test_tokens_of_groups_that_are_too_old_are_counted():
    class Sampled(Prepared):
        def take_groups(self, count, ahead):
            self.taken += 1
            return [make_group([(0, 3)], [(1, 4)], index=index) for index in ([0, 1, 2] if self.taken == 1 else [3])]

    _, collector = collector_of((), {1: 9})
    collector._sampling = Sampled()
    assert collector.collect(7)[1]["rollout/tokens_discarded"] == 7.0


def test_with_dynamic_sampling_old_groups_do_not_count_towards_the_limit():
    sampling, collector = collector_of({2}, {0: 1}, dynamic_sampling=True, max_oversampling=1.34)
    signal, metrics = collector.collect(7)
    assert [group.index for group in signal.groups] == [1, 3, 4]
    assert metrics["rollout/groups_topped_up"] == 1.0
    assert sampling.replaced == 2
