"""A shared process that hangs in one call is ended and started again, and calls of other episodes go on."""

import asyncio
import sys
from pathlib import Path

import pytest

from agentrl_core.api.tools import ToolEpisode
from agentrl_core.errors import DeliveryUnknownError, EnvironmentLostError
from agentrl_core.types import ToolOutcome
from agentrl_mcp import shared_process
from agentrl_mcp.connection import Connection
from agentrl_mcp.tools import MCPTools
from agentrl_testing import ToolDriver

HERE = Path(__file__).parent
LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Shares of the limit after which a silent process gets a ping, and for which it may leave it unanswered."""
    monkeypatch.setattr(shared_process, "_PING_AFTER", 0.005)
    monkeypatch.setattr(shared_process, "_PING_FOR", 0.02)
    monkeypatch.setattr(shared_process, "_LEAST_PING_S", 0.0)


@pytest.fixture
def notes(tmp_path):
    return tmp_path / "notes.txt"


@pytest.fixture
def make(notes):
    def tools(isolation="shared", **options):
        command = [sys.executable, "-S", str(HERE / "single_server.py"), str(notes)]
        return MCPTools(command=command, isolation=isolation, protocol="2025-11-25", name="calc", **options)

    return tools


def episode(number):
    return ToolEpisode(record_id=f"record-{number}", task_id="t", data={})


def run(tools, scenario):
    async def drive():
        await tools.start()
        try:
            async with asyncio.timeout(50):
                return await scenario(tools)
        finally:
            await tools.close()

    return asyncio.run(drive())


@pytest.mark.parametrize("name", ["pause", "power"])
def test_calls_that_a_process_never_read_are_made_by_the_next_one(make, notes, caplog, name):
    async def scenario(tools):
        sessions = [await tools.open(episode(number)) for number in range(21)]
        before = (await sessions[0].call("pid", {}, timeout_s=LIMIT_S)).text
        hanging = asyncio.create_task(sessions[0].call(name, {}, timeout_s=LIMIT_S))
        # What comes after the server has begun to hang stays in the pipe.
        while not notes.exists():
            await asyncio.sleep(0.01)
        calls = [session.call("note", {"text": str(n)}, timeout_s=LIMIT_S) for n, session in enumerate(sessions[1:])]
        pids = {result.text for result in await asyncio.gather(*calls)}
        with pytest.raises(DeliveryUnknownError, match=r"calc: hangs: it said nothing for .* did not answer a ping"):
            await hanging
        return before, pids

    before, pids = run(make(), scenario)
    assert len(pids) == 1
    assert before not in pids
    begun, *noted = notes.read_text().split()
    assert (begun, sorted(map(int, noted))) == (name, list(range(20))), "each call took effect once"
    assert [record.levelname for record in caplog.records if "calc: hangs" in record.message] == ["WARNING"]


def test_an_episode_whose_state_was_in_the_process_is_lost(make):
    async def scenario(tools):
        first, second = await tools.open(episode(1)), await tools.open(episode(2))
        await second.call("pid", {}, timeout_s=LIMIT_S)
        with pytest.raises(DeliveryUnknownError, match="calc: hangs"):
            await first.call("pause", {}, timeout_s=LIMIT_S)
        with pytest.raises(EnvironmentLostError, match="a new one was started"):
            await second.call("pid", {}, timeout_s=LIMIT_S)

    run(make("session"), scenario)


def test_a_process_that_answers_a_ping_goes_on(make):
    async def scenario(tools):
        session = await tools.open(episode(1))
        pid = (await session.call("pid", {}, timeout_s=LIMIT_S)).text
        pinged = asyncio.Event()
        ping = Connection.ping

        async def noted(connection, *, timeout_s):
            await ping(connection, timeout_s=LIMIT_S)
            pinged.set()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "ping", noted)
            hanging = asyncio.create_task(session.call("hang", {}, timeout_s=LIMIT_S))
            await pinged.wait()
        hanging.cancel()
        return (await session.call("pid", {}, timeout_s=LIMIT_S)).text == pid

    command = [sys.executable, "-S", str(HERE / "raw_server.py")]
    assert run(MCPTools(command=command, isolation="shared"), scenario)


CALCULATOR = """
import pathlib
from mcp.server import MCPServer

mcp = MCPServer("calculator")

@mcp.tool()
def calculate(expression: str) -> str:
    pathlib.Path(__file__).with_suffix(".begun").touch()
    return str(eval(expression).bit_length())

mcp.run()
"""


@pytest.mark.slow
def test_a_calculator_that_is_asked_for_too_large_a_power_does_not_end_the_run(tmp_path, monkeypatch):
    (tmp_path / "calculator.py").write_text(CALCULATOR)
    monkeypatch.setattr(shared_process, "_PING_AFTER", 0.05)
    monkeypatch.setattr(shared_process, "_PING_FOR", 0.05)
    server = MCPTools(command=["python", "calculator.py"], isolation="shared", name="calc", config_dir=tmp_path)

    async def scenario():
        driver = ToolDriver([server], timeout_s=LIMIT_S)
        await driver.toolbox.start()
        episodes = [driver.open({"id": f"t{number}"}) for number in range(65)]
        first = asyncio.create_task(episodes[0].call("calculate", {"expression": "9**9**9"}))
        while not (tmp_path / "calculator.begun").exists():
            await asyncio.sleep(0.01)
        shown = await asyncio.gather(*(one.call("calculate", {"expression": "1 + 2"}) for one in episodes[1:]))
        ended = await first
        for one in episodes:
            await one.close()
        await driver.toolbox.close()
        return [ended, *shown], driver

    (ended, *shown), driver = asyncio.run(asyncio.wait_for(scenario(), 120))
    assert ended.outcome is ToolOutcome.DELIVERY_UNKNOWN
    assert driver.toolbox.fatal is None
    # What the server's reader had read already is lost with it; most calls came later.
    answered = [call for call in shown if call.outcome is ToolOutcome.OK]
    assert {call.result.text for call in answered} == {"2"}
    assert len(answered) >= len(shown) // 2
    lost = [call.error for call in driver.calls if call.outcome is ToolOutcome.DELIVERY_UNKNOWN]
    assert len(lost) == 65 - len(answered)
    assert all(error.startswith("calc: hangs: it said nothing") for error in lost)
