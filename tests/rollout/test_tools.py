"""The tools of an episode, as its workflow has them and as its record tells of them."""

import asyncio
import contextlib

import pytest
from tests.rollout.conftest import MemoryStore
from tests.rollout.driving import stopped
from tests.tools.conftest import FakeServer, raising

from agentrl_core import workflow_context
from agentrl_core.api.tools import ToolResult
from agentrl_core.config.component import Component
from agentrl_core.config.sampling_sections import ToolsConfig
from agentrl_core.errors import DeliveryUnknownError, EnvironmentLostError, ToolServerError
from agentrl_core.tools.toolbox import Toolbox
from agentrl_core.types import Outcome, ToolOutcome


def toolbox(server, **config):
    return Toolbox(ToolsConfig(servers=(Component("fake"),), **config), [server], sleep=lambda _: asyncio.sleep(0))


@pytest.fixture
def store(request):
    """The store of the runner: the watched one where a test uses it."""
    if "watched" in request.fixturenames:
        return request.getfixturevalue("watched")
    return MemoryStore()


@pytest.fixture
def using_tools(gateway):
    """A workflow that makes an LLM call, then `work(tools)`, and returns 1."""

    def make(work):
        async def run(data, *, base_url):
            await gateway.call(base_url)
            await work(workflow_context.get().tools)
            return 1.0

        return run

    return make


def test_a_workflow_has_the_tools_of_its_record(run_one, using_tools, store):
    server = FakeServer()
    shown = []

    async def work(tools):
        shown.append(await tools.call("echo", {"text": "hi"}))
        workflow_context.mark("own_word")

    record = run_one(using_tools(work), tools=toolbox(server)).record
    assert shown[0].result.text == "hi"
    assert (server.opened, server.closed) == ([record.id], [record.id])
    assert [(call.record_id, call.outcome) for call in store.tool_calls] == [(record.id, ToolOutcome.OK)]
    assert (record.outcome, record.marks) == (Outcome.SCORED, ("own_word",))


@pytest.mark.parametrize("takes_images", [True, False])
def test_an_image_of_a_tool_is_shown_to_a_policy_that_takes_images(run_one, using_tools, store, gateway, takes_images):
    gateway.takes_images = takes_images
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}}

    async def answer(name, arguments):
        return ToolResult(content=(image,))

    async def work(tools):
        await tools.call("echo", {"text": "hi"})

    run_one(using_tools(work), tools=toolbox(FakeServer(answer=answer)))
    [call] = store.tool_calls
    assert (call.raw or call.shown) == (image,)
    assert call.shown[0]["type"] == ("image_url" if takes_images else "text")


def test_a_record_that_lost_its_environment_is_rejected_although_the_agent_swallows_the_error(run_one, using_tools):
    async def work(tools):
        with contextlib.suppress(Exception):
            await tools.call("echo", {"text": "hi"})

    server = FakeServer(answer=raising(EnvironmentLostError("the container is gone", server="fake-1")))
    record = run_one(using_tools(work), tools=toolbox(server)).record
    assert (record.outcome, record.reason, record.reward) == (Outcome.REJECTED, "environment_lost", None)
    assert (record.detail, record.marks) == ("the container is gone", ("environment_lost",))
    assert server.closed == [record.id]


def test_a_slot_whose_environment_was_lost_is_sampled_again(make_scheduler, using_tools, watched):
    """The lost record is no part of its group: the baseline is that of four records with the reward 1."""

    async def work(tools):
        with contextlib.suppress(Exception):
            await tools.call("echo", {"text": "hi"})

    async def scenario():
        server = FakeServer(answer=raising(EnvironmentLostError("gone", server="fake-1")))
        scheduler = make_scheduler(
            using_tools(work), tools=toolbox(server), group_size=4, tasks_per_step=1, retries=1, tasks=1
        )
        running = asyncio.create_task(scheduler.run())
        await scheduler.settled()
        await stopped(scheduler, running)
        return scheduler

    scheduler = asyncio.run(scenario())
    assert scheduler.counts.records.totals == {"scored": 4, "rejected(environment_lost)": 1}
    assert scheduler.tool_calls.totals == {"called echo": 5, "failed echo": 1}
    assert list(watched.usable.values()) == [True]
    lost = [record for record in watched.now.values() if record.outcome is Outcome.REJECTED]
    assert [record.reward for record in lost] == [None]


def test_tools_are_closed_when_the_agent_hangs(run_one, using_tools):
    async def work(tools):
        await tools.specs()
        await asyncio.Event().wait()

    server = FakeServer()
    record = run_one(using_tools(work), tools=toolbox(server), timeout_s=0.01).record
    assert (record.outcome, server.closed) == (Outcome.TIMED_OUT, [record.id])


def test_a_failing_server_ends_the_run_by_its_name(run_one, using_tools):
    async def work(tools):
        with contextlib.suppress(Exception):
            await tools.call("echo", {"text": "hi"})

    server = FakeServer(answer=raising(*[DeliveryUnknownError("no route")] * 9))
    with pytest.raises(ToolServerError, match=r"tool server 'fake-1': 1 of its last 1 calls failed"):
        run_one(using_tools(work), tools=toolbox(server, failure_window=1, max_failure_rate=0.0))


def test_without_servers_a_workflow_has_no_tools(run_one, using_tools):
    async def work(tools):
        assert tools is None
        with pytest.raises(ValueError, match="expected a word"):
            workflow_context.mark("Not a word")

    assert run_one(using_tools(work)).record.marks == ()
