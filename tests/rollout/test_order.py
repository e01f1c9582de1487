from concurrent.futures import ThreadPoolExecutor

import pytest

from agentrl_core.errors import DataError
from agentrl_core.rollout.order import TaskOrder, stable_hash


def ids(order, positions):
    return [order[position].id for position in positions]


@pytest.fixture
def tasks(make_task):
    return [make_task(f"t{number}") for number in range(5)]


def test_every_epoch_has_every_task_once_in_an_order_of_its_own(tasks):
    order = TaskOrder(tasks, seed=0)
    first, second = ids(order, range(5)), ids(order, range(5, 10))
    assert sorted(first) == sorted(second) == [task.id for task in tasks]
    assert first != second


def test_a_position_is_always_the_same_task(tasks):
    straight = ids(TaskOrder(tasks, seed=3), range(15))
    assert [TaskOrder(tasks, seed=3)[position].id for position in (14, 2, 7)] == [
        straight[14],
        straight[2],
        straight[7],
    ]


def test_seeds_differ(tasks):
    assert ids(TaskOrder(tasks, seed=0), range(10)) != ids(TaskOrder(tasks, seed=1), range(10))


def test_prepared_epochs_are_not_shuffled_again(tasks, monkeypatch):
    made, real = [], TaskOrder._shuffled
    monkeypatch.setattr(TaskOrder, "_shuffled", lambda self, epoch: (made.append(epoch), real(self, epoch))[1])
    order = TaskOrder(tasks, seed=0)
    order.prepare(len(tasks) + 1)
    assert made == [1, 2]
    ids(order, range(len(tasks), 3 * len(tasks)))
    order.prepare(len(tasks) + 2)
    assert made == [1, 2]


def test_unshuffled_is_the_files_order(tasks):
    assert ids(TaskOrder(tasks, seed=0, shuffle=False), range(7)) == ["t0", "t1", "t2", "t3", "t4", "t0", "t1"]


def test_no_tasks_is_an_error():
    with pytest.raises(DataError, match="no training tasks"):
        TaskOrder([], seed=0)


def test_a_stable_hash_is_the_same_in_every_process():
    assert stable_hash("t0") == 8017402042667086565
    assert 0 <= stable_hash("") < 2**63


def test_positions_may_be_read_from_several_threads_and_epochs_at_once(tasks):
    order, wanted = TaskOrder(tasks, seed=3), ids(TaskOrder(tasks, seed=3), range(40))
    places = list(range(40)) * 20
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(order.id_at, places)) == wanted * 20
