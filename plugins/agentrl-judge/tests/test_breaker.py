"""When a server is left alone, and when it is tried anew."""

import pytest

from agentrl_judge.breaker import Breaker


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def breaker(clock):
    return Breaker(failures=3, reset_s=30.0, clock=clock)


def fail(breaker, times):
    for _ in range(times):
        assert breaker.admit()
        breaker.failed()


def test_it_opens_after_failures_in_a_row(breaker):
    fail(breaker, 2)
    breaker.succeeded()
    fail(breaker, 3)
    assert not breaker.admit()
    assert breaker.wait_s == 30.0


def test_one_probe_is_let_through_when_the_time_is_up(breaker, clock):
    fail(breaker, 3)
    clock.now = 29.9
    assert not breaker.admit()
    clock.now = 30.0
    assert [breaker.admit(), breaker.admit()] == [True, False]


def test_a_probe_that_fails_opens_it_for_as_long_again(breaker, clock):
    fail(breaker, 3)
    clock.now = 31.0
    fail(breaker, 1)
    assert (breaker.admit(), breaker.wait_s) == (False, 30.0)


def test_a_probe_that_succeeds_closes_it(breaker, clock):
    fail(breaker, 3)
    clock.now = 31.0
    assert breaker.admit()
    breaker.succeeded()
    fail(breaker, 2)
    assert breaker.admit()


def test_a_probe_that_was_cancelled_leaves_the_place_to_another(breaker, clock):
    fail(breaker, 3)
    clock.now = 31.0
    assert breaker.admit()
    breaker.released()
    assert breaker.admit()


def test_calls_that_fail_late_do_not_prolong_it(breaker, clock):
    assert [breaker.admit() for _ in range(5)] == [True] * 5
    for _ in range(5):
        breaker.failed()
        clock.now += 1.0
    assert breaker.wait_s == 30.0 - 3.0  # it opened with the third, at 2 s
