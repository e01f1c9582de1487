"""Conformance tests of data sets: `DatasetSuite` for pytest, `check_dataset` for scripts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

import pytest

from agentrl_core.types import Task
from agentrl_testing.base import ConformanceSuite

Dataset: TypeAlias = "Callable[[], list[Task]]"


class DatasetSuite(ConformanceSuite):
    """Conformance tests of data sets; define the fixture `dataset`: the registered callable with its options bound."""

    @pytest.fixture
    def dataset(self) -> Dataset:
        """Return the data set under test."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `dataset`")

    def test_it_gives_tasks_with_ids_of_their_own(self, dataset: Dataset) -> None:
        """There is at least one, and each is an `agentrl_core.Task`."""
        _check_tasks(dataset)

    def test_every_task_has_something_for_an_agent(self, dataset: Dataset) -> None:
        """Each row has `messages` or a `query` and can be stored as JSON."""
        _check_rows(dataset)

    def test_it_gives_the_same_tasks_twice(self, dataset: Dataset) -> None:
        """A resumed run must continue with the same tasks."""
        _check_repeatable(dataset)


def check_dataset(dataset: Dataset) -> None:
    """Raise AssertionError if `dataset` breaks its contract; print nothing."""
    for check in (_check_tasks, _check_rows, _check_repeatable):
        check(dataset)


def _check_tasks(dataset: Dataset) -> None:
    tasks = dataset()
    assert tasks, "no tasks"
    assert all(isinstance(task, Task) for task in tasks), f"expected tasks, found {type(tasks[0]).__name__}"
    twice = [name for name, count in Counter(task.id for task in tasks).items() if count > 1]
    assert not twice, f"several tasks have the id {twice[0]!r}"


def _check_rows(dataset: Dataset) -> None:
    for task in dataset():
        assert {"messages", "query"} & task.data.keys(), f"task '{task.id}' has neither messages nor a query"
        assert json.loads(json.dumps(task.data)) == task.data, f"task '{task.id}' changes when it is stored as JSON"
        assert task.answer is None or isinstance(task.answer, str), f"task '{task.id}': answer {task.answer!r}"


def _check_repeatable(dataset: Dataset) -> None:
    assert dataset() == dataset(), "the data set returned other tasks when it was loaded a second time"
