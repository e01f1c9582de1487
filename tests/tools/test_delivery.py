"""Requests are repeated only where that does no harm, within the deadline and the number of retries."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.errors import DeliveryUnknownError, ToolNotSentError
from agentrl_core.http.backoff import Backoff, RetryPolicy
from agentrl_core.tools.delivery import Strays, deliver
from agentrl_core.types import ToolOutcome

ENDS = st.lists(
    st.tuples(st.sampled_from(["not_sent", "unknown", "timeout", "ok"]), st.floats(0, 4)), min_size=1, max_size=8
)


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self):
        self.now = 0.0

    async def sleep(self, seconds):
        self.now += seconds
        await asyncio.sleep(0)


def plainly(ends, *, repeatable, retries, timeout_s):
    """Return the expected outcome of attempts that end as `ends` says, written down as the rules have it."""
    now, unknown = 0.0, False
    for number, (end, lasts) in enumerate(ends):
        now += lasts
        if end == "ok":
            return "ok", number + 1
        unknown = unknown or end != "not_sent"
        pause = 0.1 * 2**number
        if number == retries or (unknown and not repeatable) or now + pause >= timeout_s:
            return ("delivery_unknown" if unknown else "not_sent"), number + 1
        now += pause
    return None


@given(ends=ENDS, repeatable=st.booleans(), retries=st.integers(0, 4), timeout_s=st.floats(0.5, 10))
def test_requests_are_repeated_by_the_rules(ends, repeatable, retries, timeout_s):
    expected = plainly(ends, repeatable=repeatable, retries=retries, timeout_s=timeout_s)
    if expected is None:
        ends = [*ends, ("ok", 0.0)]
        expected = plainly(ends, repeatable=repeatable, retries=retries, timeout_s=timeout_s)
    clock, given_s = Clock(), []
    left = iter(ends)

    async def send(left_s):
        given_s.append(left_s)
        end, lasts = next(left)
        await clock.sleep(lasts)
        if end == "ok":
            return "result"
        raise {"not_sent": ToolNotSentError, "unknown": DeliveryUnknownError, "timeout": TimeoutError}[end]("down")

    async def run():
        policy = RetryPolicy(
            max_retries=retries, backoff=Backoff(first_s=0.1, jitter=0.0, longest_s=100), sleep=clock.sleep
        )
        return await deliver(
            send,
            repeatable=repeatable,
            timeout_s=timeout_s,
            retries=policy,
            strays=Strays(),
            clock=lambda: clock.now,
        )

    delivery = asyncio.run(run())
    assert (delivery.outcome.value, delivery.attempts) == expected
    assert delivery.result == ("result" if delivery.outcome is ToolOutcome.OK else None)
    assert all(seconds > 0 for seconds in given_s)


def test_a_request_that_the_server_cancels_itself_is_of_unknown_delivery():
    async def send(left_s):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    async def run():
        policy = RetryPolicy(max_retries=0)
        return await deliver(send, repeatable=False, timeout_s=5, retries=policy, strays=Strays())

    delivery = asyncio.run(run())
    assert (delivery.outcome, delivery.error) == (
        ToolOutcome.DELIVERY_UNKNOWN,
        "the server cancelled the request itself",
    )
