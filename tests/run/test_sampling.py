"""The groups of a step, collected through the operations of a sampling side that is no process at all."""

import math

import attrs
import pytest

from agentrl_core.batching.signal import Signal
from agentrl_core.config.schema import RolloutConfig
from agentrl_core.run.sampling import BatchCollector
from agentrl_core.types import Group


class Prepared:
    """Sampling whose groups are there at once; it counts what it is asked to replace."""

    def __init__(self):
        self.taken, self.replaced = 0, 0

    def take_groups(self, count, ahead):
        assert ahead.step == 7
        self.taken += count
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


def collected(dropped, **rollout):
    sampling, notices = Prepared(), []
    config = RolloutConfig(tasks_per_step=3, **rollout)
    collector = BatchCollector(sampling, Dropping(frozenset(dropped)), config, notice=notices.append)
    signal, metrics = collector.collect(7)
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
