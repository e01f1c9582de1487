"""The data set: task directories as tasks, and all problems of a folder at once."""

import pytest

from agentrl_core.errors import DataError
from agentrl_harbor.dataset import tasks
from agentrl_testing.datasets import DatasetSuite


class TestConformance(DatasetSuite):
    @pytest.fixture
    def dataset(self, make_task):
        root = make_task().parent
        return lambda: tasks(path=str(root))


CANARY = "<!-- harbor-canary GUID 1 -->\n# BENCHMARK CANARY\n\nDo it.\n"


def test_directories_become_tasks(make_task):
    make_task("b")
    folder = make_task("nested/a", config="[agent]\ntimeout_sec = 9\n", instruction_DOT_md=CANARY)
    found = tasks(path="tasks", config_dir=folder.parents[2])
    assert [item.id for item in found] == ["b", "nested/a"]
    task = found[1]
    assert task.scorer == "harbor"
    assert task.data["query"] == "Do it.\n"
    assert task.data["messages"] == [{"role": "user", "content": "Do it.\n"}]
    assert (task.data["task_dir"], task.data["agent_timeout_s"]) == (str(folder), 9)
    assert "solution" not in str(task.data)


def test_one_directory_is_one_task(make_task):
    folder = make_task()
    (task,) = tasks(path=str(folder))
    assert task.id == "hello"


def test_tasks_are_chosen_by_patterns(make_task):
    for name in ("easy/a", "easy/b", "hard/a"):
        root = make_task(name).parents[1]
    assert [item.id for item in tasks(path=str(root), include=("easy/*",), exclude=("*/b",))] == ["easy/a"]
    with pytest.raises(DataError, match="leave none of the 3 tasks"):
        tasks(path=str(root), include=("none",))


def test_all_problems_are_named(make_task, tmp_path):
    make_task("good")
    make_task("no-test", tests__test_DOT_sh=None)
    make_task("no-image", environment__Dockerfile=None)
    make_task("empty", instruction_DOT_md=" \n")
    make_task("steps", config='[[steps]]\nname = "x"\n')
    root = make_task("compose", **{"environment__docker-compose_DOT_yaml": "services: {}"}).parent
    link = make_task("link") / "tests" / "secret"
    link.symlink_to(tmp_path)
    with pytest.raises(DataError) as caught:
        tasks(path=str(root))
    text = str(caught.value)
    assert text.startswith("6 of 7 tasks cannot be run (leave them out by `exclude`)")
    for reason in ("expected tests/test.sh", "expected environment/Dockerfile", "is empty", "several steps",
                   "several containers", "leads out of the task directory"):  # fmt: skip
        assert reason in text
    assert [item.id for item in tasks(path=str(root), include=("good",))] == ["good"]


def test_a_folder_without_tasks_is_named(tmp_path):
    with pytest.raises(DataError, match="expected task directories"):
        tasks(path=str(tmp_path))


def test_an_image_with_the_tests_needs_no_script(make_task):
    config = '[verifier]\nenvironment_mode = "separate"\n'
    folder = make_task(config=config, tests__test_DOT_sh=None, tests__Dockerfile="FROM a\nCOPY . /tests/\n")
    assert len(tasks(path=str(folder))) == 1
