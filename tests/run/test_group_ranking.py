"""Orders as a run applies them: what they learn of a group, and what happens with orders that break their contract."""

import attrs
import pytest

from agentrl_core.api.group_queue import OvertakeLimits, RankedGroup
from agentrl_core.batching.group_orders import Fifo, Freshest, Priority
from agentrl_core.errors import DataError, PluginError, UsageError
from agentrl_core.run.group_ranking import GroupRanking, unrankable
from agentrl_core.types import Task

LIMITS = OvertakeLimits(step=7, max_lag=3, per_step=4)


@attrs.frozen
class Waiting:
    step: int = 5
    ready: bool = True
    index: int = 11
    task_id: str = "a"
    tries: int = 2


@attrs.frozen
class Own:
    answer: object

    def urgency(self, group):
        return self.answer(group)


def task(name, **data):
    return Task(id=name, data={"id": name, **data})


def test_fifo_leaves_the_limits_as_they_are():
    assert GroupRanking.of(Fifo(), [task("a")]).apply(LIMITS) is LIMITS


def test_an_order_gets_all_facts_of_a_group():
    seen = []
    limits = GroupRanking.of(Own(lambda group: seen.append(group) or 1), [task("a", level=3)]).apply(LIMITS)
    assert attrs.evolve(limits, urgency=None) == LIMITS
    assert (limits.urgency(Waiting()), limits.urgency(Waiting(task_id="of an agent"))) == (1, 1)
    first = RankedGroup(index=11, step=5, lag=2, steps_left=1, task_id="a", task=task("a", level=3), tries=2)
    assert seen == [first, attrs.evolve(first, task_id="of an agent", task=None)]


def test_the_orders_of_core():
    tasks = [task("a", priority=2, weight=0.5), task("b")]
    freshest = GroupRanking.of(Freshest(), tasks).apply(LIMITS).urgency
    assert freshest(Waiting(step=6)) > freshest(Waiting(step=5)) == freshest(Waiting(step=5, index=99, task_id="b"))
    for order, expected in ((Priority(), (2, 0, 0)), (Priority(field="weight", default=0.75), (0.5, 0.75, 0.75))):
        urgency = GroupRanking.of(order, tasks).apply(LIMITS).urgency
        assert tuple(urgency(Waiting(task_id=name)) for name in ("a", "b", "c")) == expected


@pytest.mark.parametrize("value", ["high", None, True, float("nan"), float("inf"), [1]])
def test_a_priority_that_is_no_number_is_found_before_the_run(value):
    found = unrankable(Priority(), [task("a"), task("b", priority=value)])
    assert found is not None
    assert (found[0].id, found[1]) == (
        "b",
        f"rollout.order (Priority): expected a finite number in the field 'priority', found {value!r}",
    )
    with pytest.raises(DataError, match=r"^task 'b': rollout\.order"):
        GroupRanking.of(Priority(), [task("b", priority=value)]).apply(LIMITS).urgency(Waiting(task_id="b"))


@pytest.mark.parametrize("value", [0, -1.5, 10**9])
def test_any_number_is_a_priority(value):
    assert unrankable(Priority(), [task("a", priority=value)]) is None
    assert unrankable(Fifo(), [task("a", priority="high")]) is None


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda group: "first", "expected a number from `urgency`, found 'first'"),
        (lambda group: float("nan"), "expected a number from `urgency`, found nan"),
        (lambda group: group.task.data["level"], "`urgency` raised KeyError: 'level'"),
    ],
)
def test_an_order_that_breaks_its_contract_is_told_in_one_line(answer, told):
    assert unrankable(Own(answer), [task("a")]) == (task("a"), f"rollout.order (Own): {told}")
    with pytest.raises(PluginError) as raised:
        GroupRanking.of(Own(answer), [task("a")]).apply(LIMITS).urgency(Waiting())
    assert str(raised.value) == f"task 'a': rollout.order (Own): {told}"
    assert isinstance(raised.value, UsageError)
