"""Agents in workers use the tools of the run, which checks and records their calls."""

import asyncio

import pytest
from tests.tools.conftest import FakeServer, raising

from agentrl_core.api.tools import ToolResult
from agentrl_core.config.component import Component
from agentrl_core.config.sampling_sections import ToolsConfig
from agentrl_core.errors import EnvironmentLostError
from agentrl_core.tools.toolbox import Toolbox
from agentrl_core.types import Outcome

MESSAGE = """
TEXTS = ('{"text": "n0"}', '{"text": "n1"}')
CALLS = [{"id": text, "function": {"name": "echo", "arguments": text}} for text in TEXTS]
"""


def toolbox(server, **config):
    return Toolbox(ToolsConfig(servers=(Component("fake"),), **config), [server], sleep=lambda _: asyncio.sleep(0))


@pytest.mark.parametrize("mode", ["subproc", "python"])
def test_an_async_agent_has_the_tools_wherever_it_runs(play, agents, mode):
    file = agents(
        MESSAGE
        + """
async def run(data, *, base_url, api_key, tools):
    ask(data, base_url, api_key)
    (tool,) = await tools.as_openai()
    assert tool["function"]["name"] == "echo"
    shown = await tools.call("echo", {"text": "hi"}, id="c", messages=data["messages"])
    assert shown.message == {"role": "tool", "tool_call_id": "c", "content": "hi"}, shown.message
    messages = await tools.call_all({"role": "assistant", "tool_calls": CALLS})
    assert [message["content"] for message in messages] == ["n0", "n1"]
    wrong = await tools.call("echo", "{")
    assert wrong.outcome == "invalid_arguments", wrong.outcome
    return 1.0
"""
    )
    server = FakeServer()
    [record] = play(f"{file}:run", mode, tools=toolbox(server))
    assert (record.outcome, record.reward, record.detail) == (Outcome.SCORED, 1.0, "")
    assert [arguments["text"] for _, arguments in server.calls] == ["hi", "n0", "n1"]
    assert server.closed == [record.id]


@pytest.mark.parametrize("mode", ["inline", "subproc", "python"])
def test_a_sync_agent_runs_its_calls_itself(play, agents, mode):
    file = agents(
        """
import asyncio

def run(data, *, base_url, api_key, tools):
    ask(data, base_url, api_key)
    return float(asyncio.run(tools.call("echo", {"text": "0.25"})).message["content"])
"""
    )
    assert play(f"{file}:run", mode, tools=toolbox(FakeServer()))[0].reward == 0.25


def test_workflow_context_has_tools_and_marks_in_a_worker(play, agents):
    file = agents(
        """
from agentrl_core import workflow_context
from agentrl_core.api.tools import ToolSpec

async def run(data, *, base_url, api_key):
    ask(data, base_url, api_key)
    tools = workflow_context.get().tools
    (spec,) = await tools.specs()
    assert isinstance(spec, ToolSpec)
    workflow_context.mark("seen")
    try:
        workflow_context.mark("Not a word")
    except ValueError:
        return float((await tools.call("echo", {"text": "0.5"})).result.text)
"""
    )
    [record] = play(f"{file}:run", tools=toolbox(FakeServer()))
    assert (record.reward, record.marks, record.detail) == (0.5, ("seen",), "")


@pytest.mark.parametrize("mode", ["subproc", "python"])
def test_a_lost_environment_rejects_the_record_of_a_worker(play, agents, mode):
    file = agents(
        """
async def run(data, *, base_url, api_key, tools):
    ask(data, base_url, api_key)
    try:
        await tools.call("echo", {"text": "hi"})
    except Exception as error:
        assert "gone" in str(error)
    return 1.0
"""
    )
    server = FakeServer(answer=raising(EnvironmentLostError("gone", server="fake-1")))
    [record] = play(f"{file}:run", mode, tools=toolbox(server))
    assert (record.outcome, record.reason, record.reward) == (Outcome.REJECTED, "environment_lost", None)


def test_a_call_that_outlives_its_episode_does_not_disturb_the_next(play, agents):
    async def never(name, arguments):
        if arguments["text"] == "wait":
            await asyncio.Event().wait()
        return ToolResult.of_text("1")

    file = agents(
        """
import asyncio

async def run(data, *, base_url, api_key, tools):
    ask(data, base_url, api_key)
    left = asyncio.ensure_future(tools.call("echo", {"text": "wait"}))
    await asyncio.sleep(0)
    return float((await tools.call("echo", {"text": "now"})).message["content"])
"""
    )
    records = play(f"{file}:run", count=2, tools=toolbox(FakeServer(answer=never)))
    assert [record.reward for record in records] == [1.0, 1.0]


def test_an_agent_without_tools_in_the_config_is_not_given_any(play, agents):
    file = agents(
        """
from agentrl_core import workflow_context

def run(data, *, base_url, api_key, tools="own"):
    ask(data, base_url, api_key)
    assert workflow_context.get().tools is None
    return 1.0 if tools == "own" else 0.0
"""
    )
    assert play(f"{file}:run")[0].reward == 1.0


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"call": 0, "method": "close", "given": {}}, "asked for something that no agent can ask for"),
        ({"call": 0, "method": "call", "given": {"name": 3}}, "asked for 'call' with"),
    ],
)
def test_a_forged_request_fails_its_episode(play, agents, request_, said):
    file = agents(
        f"""
import gc

async def run(data, *, base_url, api_key, tools):
    ask(data, base_url, api_key)
    asking = tools._asking
    asking._send({{"op": "ask", "id": asking.number, **{request_!r}}})
    await tools.specs()
    return 1.0
"""
    )
    [record] = play(f"{file}:run", tools=toolbox(FakeServer()))
    assert (record.outcome, record.reason) == (Outcome.FAILED, "AgentProtocolError")
    assert said in record.detail
