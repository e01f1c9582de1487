"""Waits for other members: told, reminded of, and ended."""

import pytest

from agentrl_core.errors import RunError
from agentrl_core.run.roles.waiting import Wait


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def told():
    return []


@pytest.fixture
def clock():
    return Clock()


def at(wait, clock, *times):
    for now in times:
        clock.now = 100.0 + now
        wait.on("a server", "start one")


def test_a_wait_is_told_once_and_again_each_minute(told, clock):
    at(Wait(told.append, 600.0, clock=clock), clock, 0, 1, 59, 60, 61, 119, 120.5)
    assert told == [
        "waiting for a server; start one",
        "still waiting for a server, for 1 min; start one",
        "still waiting for a server, for 2 min; start one",
    ]


def test_a_wait_ends_with_an_error_that_says_for_what_and_what_to_do(told, clock):
    wait = Wait(told.append, 30.0, clock=clock)
    at(wait, clock, 0, 29.9)
    with pytest.raises(RunError, match=r"waited 30 s for a server; start one\. roles\.wait_s"):
        at(wait, clock, 30)


def test_a_wait_without_a_limit_goes_on(told, clock):
    at(Wait(told.append, None, clock=clock), clock, 0, 1e9)
    assert told[-1].startswith("still waiting for a server, for 16666667 min")


def test_another_wait_begins_anew(told, clock):
    wait = Wait(told.append, 30.0, clock=clock)
    at(wait, clock, 0, 29)
    wait.on("a sampler", "start one")
    clock.now += 29
    wait.on("a sampler", "start one")
    wait.over()
    assert wait.what == ""
    clock.now += 29
    wait.on("a sampler", "start one")
    assert wait.what == "a sampler"


def test_a_short_wait_is_not_told(told, clock):
    wait = Wait(told.append, 100.0, quiet_s=60.0, clock=clock)
    at(wait, clock, 0, 59)
    wait.over()
    at(wait, clock, 59.5, 119)
    assert told == []
    at(wait, clock, 119.5)
    assert told == ["waiting for a server; start one"]
