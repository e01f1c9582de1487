import pytest

from agentrl_core.errors import DataError
from agentrl_core.rollout.order import TaskOrder, TaskQueue, stable_hash


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


def test_unshuffled_is_the_files_order(tasks):
    assert ids(TaskOrder(tasks, seed=0, shuffle=False), range(7)) == ["t0", "t1", "t2", "t3", "t4", "t0", "t1"]


def test_no_tasks_is_an_error():
    with pytest.raises(DataError, match="no training tasks"):
        TaskOrder([], seed=0)


def test_a_stable_hash_is_the_same_in_every_process():
    assert stable_hash("t0") == 8017402042667086565
    assert 0 <= stable_hash("") < 2**63


@pytest.fixture
def queue(tasks):
    def make(**options):
        return TaskQueue(TaskOrder(tasks, seed=0, shuffle=False), **options)

    return make


def test_what_is_put_back_comes_before_new_positions_once_it_is_released(queue):
    line = queue(requeue=1)
    turns = [line.next() for _ in range(4)]
    assert line.put_back(turns[3])
    assert line.put_back(turns[1])
    assert line.next().index == 4
    line.release()
    again = [line.next() for _ in range(3)]
    assert [(turn.index, turn.task.id, turn.tries) for turn in again] == [(1, "t1", 1), (3, "t3", 1), (5, "t0", 0)]


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_a_position_is_put_back_within_its_budget(queue, budget):
    line = queue(requeue=budget)
    turn = line.next()
    for _ in range(budget):
        assert line.put_back(turn)
        line.release()
        turn = line.next()
        assert turn.index == 0
    assert not line.put_back(turn)
    line.release()
    assert line.next().index == 1


def test_positions_that_an_earlier_process_left_come_first(queue):
    line = queue(start_index=7, left={5: 1, 2: 0, 3: 2}, requeue=1)
    turns = [line.next() for _ in range(3)]
    assert [(turn.index, turn.task.id, turn.tries) for turn in turns] == [(2, "t2", 0), (5, "t0", 1), (7, "t2", 0)]
    assert not line.put_back(turns[1])


def test_without_an_order_positions_go_to_the_tasks_that_come(make_task):
    line = TaskQueue(None, start_index=3, left={1: 0}, requeue=2)
    turn = line.turn_for(make_task("from elsewhere"))
    assert (turn.index, turn.task.id) == (3, "from elsewhere")
    assert not line.put_back(turn)
    with pytest.raises(TypeError):
        line.next()
