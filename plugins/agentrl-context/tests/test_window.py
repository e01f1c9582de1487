"""`sliding_window` drops whole turns from the middle."""

import pytest

from agentrl_context.window import SlidingWindow
from agentrl_testing import ContextPolicySuite


class TestConformance(ContextPolicySuite):
    @pytest.fixture(params=[0, 1, 4])
    def policy(self, request):
        return SlidingWindow(keep=request.param)


def test_the_task_and_the_newest_turns_stay(compact, history):
    messages = history(5)
    assert compact(SlidingWindow(keep=2), messages) == [*messages[:2], *messages[8:]]


def test_what_the_user_said_belongs_to_the_turn_before_it(compact, history):
    messages = [*history(2), {"role": "user", "content": "and then?"}]
    assert compact(SlidingWindow(keep=1), messages) == [*messages[:2], *messages[4:]]


def test_as_many_turns_as_are_kept_stay_as_they_are(compact, history):
    assert compact(SlidingWindow(keep=3), history(3)) is None
