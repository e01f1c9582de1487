"""The workflow suite passes agents as users write them, and fails those that break the contract."""

import asyncio
import functools
import json

import pytest
from openai import AsyncOpenAI, OpenAI

from agentrl_core import workflow_context
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.types import Task
from agentrl_testing.workflows import Rehearsal, WorkflowSuite

pytest_plugins = ["pytester"]

ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}},
}


class ToolAgent:
    """Adds with a tool, over several turns, and closes the client that it was lent."""

    async def run(self, data, *, base_url, api_key, http_client):
        messages = list(data["messages"])
        async with AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0) as client:
            while True:
                reply = await client.chat.completions.create(model="default", messages=messages, tools=[ADD])
                message = reply.choices[0].message
                messages.append(message)
                if not message.tool_calls:
                    return float(message.content == "<answer>4</answer>")
                for call in message.tool_calls:
                    total = sum(json.loads(call.function.arguments).values())
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": str(total)})


def sync_agent(data, base_url, api_key):
    with OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        reply = client.chat.completions.create(model="default", messages=data["messages"])
        return {reply.id: 1.0}


async def context_agent(data):
    here = workflow_context.get()
    client = AsyncOpenAI(base_url=here.base_url, api_key="dummy", http_client=workflow_context.get_httpx_client())
    await client.chat.completions.create(model="default", messages=data["messages"])


class OneTask(WorkflowSuite):
    @pytest.fixture
    def data(self):
        return {"id": "t", "messages": [{"role": "user", "content": "2 + 2?"}]}


class TestToolAgent(OneTask):
    @pytest.fixture
    def workflow(self):
        return ToolAgent

    @pytest.fixture
    def say(self):
        call = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>'
        return lambda prompt: "<answer>4</answer>" if "<tool_response>4" in prompt else call

    def test_the_tool_was_used(self, rehearsal, resolved, tasks):
        (episode,) = rehearsal.play(resolved, tasks[:1])
        first, second = episode.interactions
        assert first.output["tool_calls"][0]["function"]["name"] == "add"
        assert second.parent == first.id
        assert episode.record.reward == 1.0


class TestSyncFunction(OneTask):
    @pytest.fixture
    def workflow(self):
        return sync_agent


class TestFunctionThatAsksTheContext(OneTask):
    @pytest.fixture
    def workflow(self):
        return context_agent


class SharedSession:
    """Keeps the first episode's address for all others."""

    base_url = None

    async def run(self, data, *, base_url, api_key, http_client):
        self.base_url = self.base_url or base_url
        client = AsyncOpenAI(base_url=self.base_url, api_key="dummy", http_client=http_client, max_retries=0)
        await client.chat.completions.create(model="default", messages=data["messages"])
        return 1.0


async def unstoppable(data, *, base_url, api_key, http_client):
    client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
    for _ in range(1000):
        try:
            await client.chat.completions.create(model="default", messages=data["messages"])
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        else:
            break
    return 1.0


@pytest.fixture
def rehearsal(tmp_path):
    rehearsal = Rehearsal(tmp_path / "rehearsal", lambda prompt: "4")
    yield rehearsal
    rehearsal.close()


@pytest.fixture
def tasks():
    data = {"id": "t", "messages": [{"role": "user", "content": "2 + 2?"}]}
    return [Task(id=f"t{number}", data=data) for number in range(3)]


@pytest.fixture
def resolve(tmp_path):
    return functools.partial(
        resolve_workflow, registry=load_registry(environ={"AGENTRL_LOAD_PLUGINS": ""}), base_dir=tmp_path
    )


def test_a_session_that_is_shared_is_noticed(rehearsal, resolve, tasks):
    with pytest.raises(AssertionError):
        WorkflowSuite().test_concurrent_episodes_do_not_disturb_each_other(rehearsal, resolve(SharedSession), tasks)


def test_an_agent_that_makes_no_call_is_noticed(rehearsal, resolve, tasks):
    async def silent(data):
        return 1.0

    with pytest.raises(AssertionError, match="LLM call"):
        WorkflowSuite().test_an_episode_ends_with_a_reward(rehearsal, resolve(silent), tasks)


def test_an_agent_that_cannot_be_cancelled_is_noticed(rehearsal, resolve, tasks, caplog):
    with pytest.raises(AssertionError):
        WorkflowSuite().test_it_ends_when_it_is_cancelled(rehearsal, resolve(unstoppable), tasks, caplog)


def test_a_suite_without_its_fixture_says_so(pytester):
    pytester.makepyfile(
        "from agentrl_testing.workflows import WorkflowSuite\nclass TestMine(WorkflowSuite):\n    pass\n"
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-k", "ends_with_a_reward")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*TestMine needs a fixture `workflow`*"])
