"""Waits between attempts grow to a limit, differ between callers, and keep to what a server asks for."""

import asyncio

import pytest

from agentrl_core.http.backoff import Backoff, RetryPolicy, TransientError, retry_after_s


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


@pytest.fixture
def repeated():
    """Play attempts that end one after the other with an error or a value; return how all ended, and the waits."""

    def play(*ends, max_retries=2, longest_wait_s=20.0):
        waits, rest = [], list(ends)

        async def sleep(seconds):
            waits.append(seconds)

        async def attempt():
            end = rest.pop(0)
            if isinstance(end, Exception):
                raise end
            return end

        policy = RetryPolicy(
            max_retries=max_retries, backoff=Backoff(uniform=longest), longest_wait_s=longest_wait_s, sleep=sleep
        )
        try:
            outcome = asyncio.run(policy.call(attempt))
        except (OSError, RuntimeError, ValueError) as error:
            outcome = error
        assert not rest
        return outcome, waits

    return play


def test_a_call_is_repeated_until_it_succeeds(repeated):
    failed = TransientError(OSError("away"))
    assert repeated(failed, failed, "answer") == ("answer", [0.5, 1.0])


def test_after_the_last_attempt_its_own_failure_is_raised(repeated):
    last = OSError("still away")
    assert repeated(TransientError(OSError("away")), TransientError(last), max_retries=1) == (last, [0.5])
    assert repeated(TransientError(last), max_retries=0) == (last, [])


def test_a_failure_that_is_not_transient_ends_the_call(repeated):
    error = ValueError("wrong")
    assert repeated(TransientError(OSError("away")), error) == (error, [0.5])


def test_the_cause_of_the_last_failure_is_kept(repeated):
    cause, failure = OSError("refused"), RuntimeError("could not be reached")
    transient = TransientError(failure)
    transient.__cause__ = cause
    assert repeated(transient, max_retries=0)[0].__cause__ is cause


def test_a_server_that_asks_for_more_time_than_is_given_is_not_asked_again(repeated):
    failure = OSError("busy")
    assert repeated(TransientError(failure, asked_s=20.0), "answer") == ("answer", [20.0])
    assert repeated(TransientError(failure, asked_s=20.1)) == (failure, [])


def test_what_the_server_never_saw_is_repeated_at_once_and_does_not_count(repeated):
    unseen, failed = TransientError(OSError("closed"), at_once=True), TransientError(OSError("away"))
    assert repeated(unseen, failed, unseen, unseen, failed, "answer") == ("answer", [0.5, 1.0])
