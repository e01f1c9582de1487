import pytest

from agentrl_core.rollout.capacity import Capacity


def start_all(capacity):
    """Start what may start; how many that was."""
    started = max(0, capacity.groups())
    for _ in range(started):
        capacity.started()
    return started


# (bound + steps done + 1) * 2 - (accepted + running), by hand, for batches of 2 groups
@pytest.mark.parametrize(("bound", "starts"), [(0, [2, 2, 2]), (2, [6, 2, 2])])
def test_each_step_admits_one_batch_beyond_the_bound(bound, starts):
    capacity = Capacity(max_head_offpolicyness=bound, tasks_per_step=2)
    seen = []
    for step in range(3):
        capacity.steps_done = step
        seen.append(start_all(capacity))
        assert start_all(capacity) == 0
        for _ in range(2):
            capacity.finished(usable=True)
        assert start_all(capacity) == 0  # accepted groups keep their place until a step is done
    assert seen == starts


def test_an_unusable_group_makes_room_for_another():
    capacity = Capacity(max_head_offpolicyness=0, tasks_per_step=2)
    start_all(capacity)
    capacity.finished(usable=False)
    assert capacity.groups() == 1


@pytest.mark.parametrize("bound", [0, 2])
def test_a_resumed_run_has_the_room_of_a_fresh_one(bound):
    capacity = Capacity(max_head_offpolicyness=bound, tasks_per_step=3)
    capacity.go_on_after(10)
    assert capacity.groups() == (bound + 1) * 3


def test_nothing_starts_that_no_step_would_consume():
    capacity = Capacity(max_head_offpolicyness=5, tasks_per_step=2, total_steps=3)
    assert start_all(capacity) == 6
    for _ in range(6):
        capacity.finished(usable=True)
    capacity.steps_done = 3
    assert capacity.groups() == 0


def test_a_group_that_is_replaced_makes_room_for_one():
    capacity = Capacity(max_head_offpolicyness=0, tasks_per_step=2, total_steps=1)
    start_all(capacity)
    for _ in range(2):
        capacity.finished(usable=True)
    capacity.replaced(1)
    assert start_all(capacity) == 1
