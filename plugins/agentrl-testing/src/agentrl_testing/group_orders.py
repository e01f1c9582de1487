"""Conformance tests of orders of groups: `GroupOrderSuite` for pytest, `check_group_order` for scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from agentrl_core.api.group_queue import RankedGroup
from agentrl_core.types import Task
from agentrl_testing.base import ConformanceSuite

if TYPE_CHECKING:
    from agentrl_core.api.group_queue import GroupOrder


class GroupOrderSuite(ConformanceSuite):
    """Conformance tests of orders of groups; define the fixture `order`, and `task` if your order reads fields."""

    @pytest.fixture
    def order(self) -> GroupOrder:
        """Return the order under test."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `order`")

    @pytest.fixture
    def task(self) -> Task:
        """Return a task of a data set for which the order is made."""
        return _TASK

    def test_every_group_gets_a_number(self, order: GroupOrder, task: Task) -> None:
        """Groups of any age and of any number of tries are ranked, also those of agents that bring their tasks."""
        _check_numbers(order, task)

    def test_the_same_group_gets_the_same_number(self, order: GroupOrder, task: Task) -> None:
        """An order keeps no state from one group to the next: a group may be ranked any number of times."""
        _check_repeatable(order, task)


_TASK = Task(id="task-1", data={"id": "task-1", "messages": []})


def check_group_order(order: GroupOrder, task: Task = _TASK) -> None:
    """Raise AssertionError if `order` breaks its contract; print nothing."""
    for check in (_check_numbers, _check_repeatable):
        check(order, task)


def _groups(task: Task) -> Sequence[RankedGroup]:
    return [
        RankedGroup(
            index=index, step=index // 2, lag=lag, steps_left=3 - lag, task_id=task.id, task=known, tries=index % 3
        )
        for index in range(8)
        for lag in range(4)
        for known in (task, None)
    ]


def _check_numbers(order: GroupOrder, task: Task) -> None:
    for group in _groups(task):
        found = order.urgency(group)
        is_number = isinstance(found, int | float) and not math.isnan(found)
        assert is_number, f"{group}: expected a number, found {found!r}"


def _check_repeatable(order: GroupOrder, task: Task) -> None:
    groups = _groups(task)
    first = [order.urgency(group) for group in groups]
    again = [order.urgency(group) for group in reversed(groups)]
    assert again[::-1] == first, "the same group got another number the second time"
