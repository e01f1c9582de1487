import random

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.api.claims import Admission
from agentrl_core.api.group_queue import OvertakeLimits, next_groups


@attrs.define(eq=False)
class Waiting:
    step: int
    ready: bool = False
    index: int = 0
    task_id: str = "task"
    tries: int = 0


def queue(text):
    """`"0o 0r 1r"`: an open and a ready group of step 0, a ready one of step 1."""
    return [Waiting(int(word[:-1]), word.endswith("r"), index) for index, word in enumerate(text.split())]


def taken(text, count, ahead):
    found = next_groups(queue(text), count, ahead)
    return found and [item.index for item in found]


def test_in_strict_order_an_open_group_holds_back_what_is_ready_behind_it():
    assert taken("0r 0o 0r", 2, None) is None
    assert taken("0r 0r 0o", 2, None) == [0, 1]
    assert taken("0r", 2, None) is None


@pytest.mark.parametrize(
    ("groups", "now", "max_lag", "found"),
    [
        ("0o 0o 0r 0r", 0, 1, [2, 3]),  # the next step may take the two
        ("0o 0o 1r 1r", 1, 1, None),  # no later step may take the two
        ("0r 0o 1r 1r", 1, 1, None),
        ("0r 0r 1o 1o", 1, 1, [0, 1]),
        ("0o 0o 1r 1r", 1, 2, [2, 3]),
        ("0o 0o 0o 1r 1r", 1, 2, None),  # the next step takes two of the three: one must be taken now
        ("0o 0r 0o 1r 1r", 1, 2, [1, 3]),
        ("0o 1o 1o 2r 2r", 2, 3, None),  # one of them for each later step is not enough
        ("0o 0r 0r", 1, 1, None),  # one more than were admitted in step 0: the third can wait, the first cannot
        ("0r 0r 0o", 1, 1, [0, 1]),
    ],
)
def test_ready_groups_overtake_as_long_as_the_others_can_be_taken_in_time(groups, now, max_lag, found):
    assert taken(groups, 2, OvertakeLimits(step=now, max_lag=max_lag, per_step=2 if now < 2 else 1)) == found


def test_without_lag_every_group_is_waited_for_but_those_that_the_step_takes_later():
    assert taken("3r 3o", 2, OvertakeLimits(step=3, max_lag=0, per_step=2)) is None
    assert taken("3o 3r", 1, OvertakeLimits(step=3, max_lag=0, per_step=2, more=1)) == [1]


def urgencies(name, seed=0):
    """An order by name: of these `none` is first in, first out."""
    chance = random.Random(seed)
    numbers = [chance.random() for _ in range(1000)]
    return {
        "none": None,
        "equal": lambda group: 0.0,
        "freshest": lambda group: group.step,
        "oldest": lambda group: -group.step,
        "random": lambda group: numbers[group.index],
    }[name]


ORDERS = st.sampled_from(["equal", "freshest", "oldest", "random"])


@pytest.mark.parametrize(
    ("groups", "order", "found"),
    [
        ("3r 3r 4r 5o 5r", "freshest", [4, 2]),
        ("3o 3o 3o 4r 5r", "freshest", [4, 3]),  # first in, first out would wait
        ("3r 4r 4r 4r 5o", "freshest", [1, 2]),
        ("3r 4r 5r", "oldest", [0, 1]),
        ("2r 3r 4r 5r", "freshest", [0, 3]),  # of step 2: too old for any step from now on
        ("1r 2r 3r 4r", "freshest", [0, 1]),
        ("2o 4r 5o", "freshest", None),
    ],
)
def test_an_order_takes_what_is_too_old_and_then_what_it_ranks_highest(groups, order, found):
    ahead = OvertakeLimits(step=5, max_lag=2, per_step=2, urgency=urgencies(order))
    assert taken(groups, 2, ahead) == found


steps_and_states = st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=12).map(
    lambda found: [Waiting(step, ready, index) for index, (step, ready) in enumerate(sorted(found))]
)


def oldest_first(queue, count, ahead):
    """First in, first out in other words: the oldest ready groups, if the remaining steps can take all open ones."""
    found = [item for item in queue if item.ready][:count]
    if len(found) < count:
        return None
    left = [item for item in queue if item not in found]
    for item in left:
        older = sum(other.step <= item.step for other in left)
        steps = max(0, item.step + ahead.max_lag - ahead.step)
        newer = any(queue.index(other) > queue.index(item) for other in found)
        if not item.ready and newer and older > ahead.per_step * steps + ahead.more:
            return None
    return found


@given(
    groups=steps_and_states,
    count=st.integers(1, 4),
    max_lag=st.integers(0, 3),
    per_step=st.integers(1, 4),
    more=st.integers(0, 2),
)
def test_without_an_order_the_oldest_ready_groups_are_taken(groups, count, max_lag, per_step, more):
    ahead = OvertakeLimits(step=5, max_lag=max_lag, per_step=per_step, more=more)
    assert next_groups(groups, count, ahead) == oldest_first(groups, count, ahead)


@given(
    groups=steps_and_states, count=st.integers(1, 4), order=ORDERS, max_lag=st.integers(0, 3), seed=st.integers(0, 99)
)
def test_an_order_always_takes_as_many_ready_groups_as_it_is_asked_for(groups, count, order, max_lag, seed):
    urgency = urgencies(order, seed)
    found = next_groups(groups, count, OvertakeLimits(step=5, max_lag=max_lag, per_step=2, urgency=urgency))
    ready = [item for item in groups if item.ready]
    if len(ready) < count:
        assert found is None
        return
    assert len(found) == len(set(found)) == count
    assert all(item.ready for item in found)
    left = [item for item in ready if item not in found]
    keys = [(5 - item.step > max_lag, urgency(item) if 5 - item.step <= max_lag else 0.0) for item in [*found, *left]]
    assert all(key >= other for key in keys[:count] for other in keys[count:])
    assert keys[:count] == sorted(keys[:count], reverse=True)


@given(seed=st.integers(0, 10**6), max_lag=st.integers(0, 3), per_step=st.integers(1, 4), order=ORDERS)
def test_in_any_order_there_is_always_a_group_to_wait_for_and_none_waits_for_ever(seed, max_lag, per_step, order):
    chance = random.Random(seed)
    admission = Admission(max_head_offpolicyness=max_lag, tasks_per_step=per_step)
    waiting: list[Waiting] = []
    count = 0
    for step in range(12):
        left, replaced, too_old = per_step, 0, 0
        while left:
            # As in a run, groups that a step has taken are pending, and what was too old is replaced.
            pending = len(waiting) + per_step - left + too_old
            room = admission.groups(admitted_steps=step, trained_steps=step, pending=pending, replaced=replaced)
            for _ in range(room):
                waiting.append(Waiting(step, chance.random() < 0.5, count))
                count += 1
            ahead = OvertakeLimits(step=step, max_lag=max_lag, per_step=per_step, urgency=urgencies(order, seed))
            found = next_groups(waiting, left, ahead)
            if found is None:
                chance.choice([item for item in waiting if not item.ready]).ready = True
                continue
            waiting = [item for item in waiting if item not in found]
            left = sum(step - item.step > max_lag for item in found)
            too_old += left
            replaced += left
        assert not any(item.ready and step - item.step > max_lag for item in waiting)


@given(seed=st.integers(0, 10**6), max_lag=st.integers(0, 3), per_step=st.integers(1, 4), one_by_one=st.booleans())
def test_no_group_is_ever_taken_too_old_and_there_is_always_one_to_wait_for(seed, max_lag, per_step, one_by_one):
    chance = random.Random(seed)
    admission = Admission(max_head_offpolicyness=max_lag, tasks_per_step=per_step)
    waiting: list[Waiting] = []
    for step in range(8):
        left = per_step
        while left:
            # The groups that this step has taken so far are pending, too.
            while (
                admission.groups(
                    admitted_steps=step, trained_steps=step, pending=len(waiting) + per_step - left, replaced=0
                )
                > 0
            ):
                waiting.append(Waiting(step))
            count = 1 if one_by_one else left
            ahead = OvertakeLimits(step=step, max_lag=max_lag, per_step=per_step, more=left - count)
            found = next_groups(waiting, count, ahead)
            if found is None:
                item = chance.choice([item for item in waiting if not item.ready])
                item.ready = chance.random() < 0.8
                if not item.ready:
                    waiting.remove(item)
                continue
            assert all(step - item.step <= max_lag for item in found)
            for item in found:
                waiting.remove(item)
            left -= count
