import itertools
import sys

import pytest

from agentrl_core.errors import DataError
from agentrl_testing.datasets import DatasetSuite
from agentrl_testing.plugins import check_plugin
from agentrl_verifiers.dataset import VerifiersTasks


def test_the_package_is_a_sound_plugin():
    check_plugin("agentrl-verifiers")


def test_an_interpreter_that_does_not_exist_is_named():
    with pytest.raises(DataError, match=r"cannot start .*/nowhere/python"):
        VerifiersTasks(env="adding", python="./nowhere/python")()


def test_an_interpreter_without_verifiers_is_told():
    with pytest.raises(DataError, match=r"environment 'adding' \(in .*No module named 'verifiers'"):
        VerifiersTasks(env="adding", python=sys.executable)()


@pytest.fixture(scope="module")
def listings(tasks):
    """Two listings of one environment: verifiers takes seconds to import."""
    return tasks("adding"), tasks("adding", again=True)


@pytest.mark.slow
class TestConformance(DatasetSuite):
    @pytest.fixture
    def dataset(self, listings):
        each = itertools.cycle(listings)
        return lambda: next(each)


@pytest.mark.slow
def test_tasks_have_the_environments_messages(tasks):
    listed = tasks("adding", first=1, args={"taskset": {"count": 3}})
    assert [task.id for task in listed] == ["adding-1", "adding-2"]
    assert listed[1].data["messages"] == [
        {"role": "system", "content": "You add."},
        {"role": "user", "content": "2 + 2?"},
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "options", "problem"),
    [
        ("guessing", {}, "the tasks of 'guessing' never end; set size"),
        ("adding", {"args": {"taskset": {"cuont": 3}}}, "taskset.*cuont"),
        ("adding", {"first": 9}, "has no tasks from position 9 on"),
    ],
)
def test_what_cannot_be_listed_is_a_line(tasks, env, options, problem):
    with pytest.raises(DataError, match=problem) as caught:
        tasks(env, **options)
    assert "\n" not in str(caught.value)
