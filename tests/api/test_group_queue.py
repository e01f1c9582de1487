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
    ],
)
def test_ready_groups_overtake_as_long_as_the_others_can_be_taken_in_time(groups, now, max_lag, found):
    assert taken(groups, 2, OvertakeLimits(step=now, max_lag=max_lag, per_step=2 if now < 2 else 1)) == found


def test_without_lag_every_group_is_waited_for_but_those_that_the_step_takes_later():
    assert taken("3r 3o", 2, OvertakeLimits(step=3, max_lag=0, per_step=2)) is None
    assert taken("3o 3r", 1, OvertakeLimits(step=3, max_lag=0, per_step=2, more=1)) == [1]


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
