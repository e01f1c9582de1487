"""How long is waited between the calls of one model."""

import asyncio

import pytest

from agentrl_core.errors import EpisodeError
from agentrl_judge.judge import Judge
from agentrl_judge.testing import JudgeServer, failing
from agentrl_testing.scorers import score_request


def waits(*replies, jitter, **options):
    """Seconds that a judge waited, where waiting takes no time."""
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    async def scenario():
        async with JudgeServer(*replies).up() as server:
            judge = Judge(models=[server.model], **options)
            judge.panel.sleep, judge.panel.uniform = sleep, jitter
            with pytest.raises(EpisodeError):
                await judge(score_request("4", "4"))

    asyncio.run(scenario())
    return waited


def longest(low, high):
    assert (low, high) == (0.5, 1)
    return high


def test_waits_grow_up_to_a_limit():
    options = {"max_retries": 6, "retry_delay_s": 2.0, "backoff_factor": 3.0, "breaker_failures": 99}
    assert waits(failing(503), jitter=longest, **options) == [2.0, 6.0, 18.0, 30.0, 30.0, 30.0]


def test_waits_differ_by_chance():
    assert waits(failing(503), jitter=lambda low, high: low, retry_delay_s=2.0) == [1.0, 2.0]


def test_a_server_may_ask_for_more_time():
    replies = (failing(429, retry_after="7.5"), failing(429), failing(429))
    assert waits(*replies, jitter=longest) == [7.5, 2.0]


@pytest.mark.parametrize("asked", ["31", "Fri, 31 Dec 9998 23:59:59 GMT"])
def test_a_server_that_asks_for_too_much_is_not_waited_for(asked):
    assert waits(failing(503, retry_after=asked), jitter=longest) == []


@pytest.mark.parametrize("asked", ["soon", "-5", "nan", "Mon, 01 Jan 2001 00:00:00 GMT"])
def test_what_asks_for_nothing_is_waited_for_as_ever(asked):
    assert waits(failing(503, retry_after=asked), jitter=longest) == [1.0, 2.0]


def test_garbage_is_asked_again_at_once():
    assert waits("babble", jitter=longest) == [0.0, 0.0]


@pytest.mark.parametrize("status", [400, 401, 404])
def test_what_will_not_change_is_not_asked_again(status):
    assert waits(failing(status), jitter=longest) == []
