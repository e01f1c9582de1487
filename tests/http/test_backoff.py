"""Waits between attempts grow to a limit, differ between callers, and keep to what a server asks for."""

import pytest

from agentrl_core.http.backoff import Backoff, retry_after_s


def longest(_least, most):
    return most


def test_waits_grow_up_to_the_longest():
    backoff = Backoff(first_s=0.5, longest_s=5.0, uniform=longest)
    assert [backoff.wait_s(attempt) for attempt in range(6)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert backoff.wait_s(10**9) == 5.0
    assert Backoff(factor=1e300, longest_s=7.0, uniform=longest).wait_s(3) == 7.0


def test_chance_takes_away_up_to_its_share():
    asked = []
    backoff = Backoff(first_s=4.0, jitter=0.25, uniform=lambda *limits: asked.append(limits) or limits[0])
    assert backoff.wait_s(0) == 3.0
    assert asked == [(0.75, 1.0)]


def test_a_server_is_not_asked_earlier_than_it_wants():
    backoff = Backoff(first_s=2.0, uniform=longest)
    assert [backoff.wait_s(0, asked) for asked in (None, 1.0, 9.0)] == [2.0, 2.0, 9.0]


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("7", 7.0),
        (" 0.5 ", 0.5),
        ("-3", 0.0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 40.0),
        ("Thu, 01 Jan 1970 00:00:10 GMT", 0.0),
        *(
            (nonsense, None)
            for nonsense in ("", "soon", "nan", "inf", "1e999", "Fri, 99 Foo 2099 00:00:00 GMT", "9" * 500)
        ),
    ],
)
def test_a_time_to_wait_is_read_in_seconds_or_as_a_date(value, wait):
    assert retry_after_s({"retry-after": value}, clock=lambda: 60.0) == wait
