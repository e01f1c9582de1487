"""Kills of tool servers in the middle of episodes: nothing hangs, nothing is lost, and only victims are rejected."""

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

import psutil
import pytest

from agentrl_core.errors import EnvironmentLostError
from agentrl_core.types import ToolOutcome
from agentrl_mcp.tools import MCPTools
from agentrl_testing import ToolDriver

pytestmark = pytest.mark.slow

RAW = Path(__file__).with_name("raw_server.py")
EPISODES, KILLS, CALLS, AT_ONCE = 200, 20, 6, 32
LIMITS = {"timeout_s": 20.0, "max_failure_rate": 1.0}


def guards():
    """The processes that our client started, each with a server below it."""
    return [child for child in psutil.Process().children() if "guard.py" in " ".join(child.cmdline())]


async def episodes(driver, play):
    """Play all episodes, some at the same time, in turns; return what `play(number, tools)` returns."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(number):
        async with places:
            tools = driver.open({"id": f"t{number}"})
            try:
                return await play(number, tools)
            finally:
                await tools.close()

    return await asyncio.gather(*(one(number) for number in range(EPISODES)))


def test_kills_of_episodes_own_servers_have_exactly_their_episodes_as_victims():
    chooser = random.Random(1)
    doomed = {number: chooser.randrange(CALLS) for number in chooser.sample(range(EPISODES), KILLS)}
    folders = []

    async def play(number, tools):
        try:
            for step in range(CALLS):
                pid = int((await tools.call("pid", {})).result.text)
                if doomed.get(number) == step:
                    hanging = asyncio.create_task(tools.call("hang", {}))
                    await tools.call("spawn", {"detach": True})
                    os.kill(pid, signal.SIGKILL)
                    await hanging
                shown = await tools.call("count", {})
                # State of the episode alone, from its first call to its last.
                assert (shown.outcome, shown.result.text) == (ToolOutcome.OK, str(step + 1))
        except EnvironmentLostError:
            return "lost"
        return "done"

    async def work(driver):
        ends = await episodes(driver, play)
        folders.extend(guard.cmdline()[5] for guard in guards())
        return ends

    driver = ToolDriver([MCPTools(command=[sys.executable, "-S", str(RAW)], warm=4, name="box")], **LIMITS)
    ends = asyncio.run(limited(driver, work))
    assert {number for number, end in enumerate(ends) if end == "lost"} == set(doomed)
    assert ends.count("done") == EPISODES - KILLS
    # Each call has its row, and only victims have rows of a lost environment.
    lost = {call.record_id for call in driver.calls if call.outcome is ToolOutcome.ENVIRONMENT_LOST}
    assert len(lost) == KILLS
    assert {call.outcome for call in driver.calls} == {ToolOutcome.OK, ToolOutcome.ENVIRONMENT_LOST}
    assert not guards()
    assert not any(map(os.path.exists, folders))


def test_a_shared_server_over_http_that_is_killed_again_and_again_loses_no_episode(http_server):
    server = http_server()

    async def play(number, tools):
        answered = 0
        for step in range(CALLS):
            shown = await tools.call("echo", {"text": f"{number}.{step}"})
            # `echo` may be repeated, so that a kill costs time and nothing else.
            assert shown.outcome is ToolOutcome.OK, shown.result.text
            assert shown.result.text == f"{number}.{step}"
            answered += 1
            await asyncio.sleep(0.01)
        return answered

    async def kill():
        for _ in range(KILLS):
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await asyncio.sleep(0.02)

    async def work(driver):
        killing = asyncio.create_task(kill())
        try:
            return await episodes(driver, play)
        finally:
            await killing

    driver = ToolDriver([MCPTools(url=server.url, name="web")], retries=30, **LIMITS)
    answered = asyncio.run(limited(driver, work))
    assert answered == [CALLS] * EPISODES
    assert len(driver.calls) == EPISODES * CALLS


async def limited(driver, work):
    """Run `work` between start and close of the driver's servers; nothing may hang."""
    async with asyncio.timeout(240):
        await driver.toolbox.start()
        try:
            return await work(driver)
        finally:
            await driver.toolbox.close()
