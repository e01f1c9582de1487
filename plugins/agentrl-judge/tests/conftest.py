"""Scoring by judges on loopback."""

import asyncio
import contextlib
import os
import threading

import pytest
from hypothesis import HealthCheck, settings

from agentrl_judge.judge import Judge
from agentrl_testing.scorers import score_request

# Machines are shared: no example is timed.
settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("untimed")


@pytest.fixture
def judged():
    """Score one answer by servers that are up for as long as it takes; returns what the scorer gave, or raised."""

    def run(*servers, answer="4", reference="4", before=(), requests=None, **options):
        async def scenario():
            async with contextlib.AsyncExitStack() as stack:
                for server in servers:
                    await stack.enter_async_context(server.up())
                models = [*before, *(server.model for server in servers)]
                judge = Judge(models=models, **{"retry_delay_s": 0.0, **options})
                given = requests or [score_request(answer, reference)]
                results = await asyncio.gather(*(judge(one) for one in given), return_exceptions=True)
                return results if requests else results[0]

        return asyncio.run(scenario())

    return run


@pytest.fixture
def standing():
    """Let a server stay up, on a thread of its own, until the test ends."""
    done, threads = threading.Event(), []

    def start(server):
        up = threading.Event()

        async def serve():
            async with server.up():
                up.set()
                await asyncio.to_thread(done.wait)

        threads.append(threading.Thread(target=asyncio.run, args=(serve(),)))
        threads[-1].start()
        assert up.wait(10)
        return server

    yield start
    done.set()
    for thread in threads:
        thread.join()
