import asyncio
import contextvars

import pytest

from agentrl_core.rollout.run_agent import run_agent, unbroken


def attempt(agent, *, timeout_s=30.0, grace_s=30.0):
    return asyncio.run(run_agent(agent, contextvars.copy_context(), timeout_s=timeout_s, grace_s=grace_s))


def test_what_an_agent_returns_is_its_value():
    async def agent():
        return {"0": 1.0}

    assert attempt(agent).value == {"0": 1.0}


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration()]
)
def test_whatever_an_agent_raises_is_a_value(error):
    async def agent():
        raise error

    kind = RuntimeError if isinstance(error, StopIteration) else type(error)  # Python's rule for coroutines
    assert type(attempt(agent).error) is kind


def test_at_the_limit_the_agent_is_cancelled_and_cleans_up():
    steps = []

    async def agent():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("cleaned up")

    assert attempt(agent, timeout_s=0.01).timed_out
    assert steps == ["cleaned up"]


def test_an_agent_that_swallows_its_cancellation_is_left_behind(caplog):
    async def scenario():
        release = asyncio.Event()

        async def agent():
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

        ended = await run_agent(agent, contextvars.copy_context(), timeout_s=0.01, grace_s=0.01)
        release.set()
        return ended

    assert asyncio.run(scenario()).timed_out
    assert "left behind" in caplog.text


def test_cancelling_the_caller_cancels_the_agent():
    async def scenario():
        running, cleaned = asyncio.Event(), asyncio.Event()

        async def agent():
            try:
                running.set()
                await asyncio.Event().wait()
            finally:
                cleaned.set()

        caller = asyncio.create_task(run_agent(agent, contextvars.copy_context(), timeout_s=30, grace_s=30))
        await running.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        return cleaned.is_set()

    assert asyncio.run(scenario())


def test_unbroken_work_ends_before_the_cancellation_is_raised():
    async def scenario():
        begun, release, steps = asyncio.Event(), asyncio.Event(), []

        async def work():
            begun.set()
            await release.wait()
            steps.append("written")

        caller = asyncio.create_task(unbroken(work()))
        await begun.wait()
        for _ in range(2):  # an impatient second Ctrl-C changes nothing
            caller.cancel()
            await asyncio.sleep(0)
        assert not caller.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        return steps

    assert asyncio.run(scenario()) == ["written"]
