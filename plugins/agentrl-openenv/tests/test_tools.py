"""The tools of an OpenEnv environment for any agent, and the reward by its scorer."""

import asyncio

import pytest

from agentrl_core.api.tools import ToolEpisode
from agentrl_core.errors import EnvironmentLostError, EpisodeError, ToolServerError
from agentrl_openenv.tools import OpenEnvTools, score
from agentrl_testing.plugins import check_plugin
from agentrl_testing.scorers import score_request


def test_the_package_is_a_sound_plugin():
    check_plugin("agentrl-openenv")


def episode(record_id):
    return ToolEpisode(record_id=record_id, task_id="t", data={"reset": {"seed": 3}})


def test_each_episode_has_tools_of_its_own_and_a_reward(server, serve):
    tools = OpenEnvTools(url=serve(server.app()) + "/counter")

    async def play():
        await tools.start()
        one, two = await tools.open(episode("one")), await tools.open(episode("example-0"))
        specs = await one.list_tools()
        first = await one.call("count", {"by": 1}, timeout_s=5)
        second = await two.call("count", {"by": 3}, timeout_s=5)
        third = await two.call("count", {"by": 3}, timeout_s=5)
        failed = await one.call("fail", {}, timeout_s=5)
        for session in (one, two):
            await session.close()
        await tools.close()
        return specs, (first, second, third, failed)

    specs, results = asyncio.run(play())
    assert [spec.name for spec in specs] == ["count", "fail"]
    assert specs[0].parameters["properties"] == {"by": {"type": "integer"}}
    assert [(item.text, item.is_error) for item in results] == [
        ("The count is 1.", False),
        ("The count is 3.", False),
        ("The episode is over.", True),
        ("no such thing: fail", True),
    ]
    assert server.resets == [{"seed": 3}, {"seed": 3}]
    assert score(score_request("")) == 1.0  # its record is example-0
    with pytest.raises(EpisodeError, match="no session of the tool server 'openenv'"):
        score(score_request(""))


def test_a_server_that_is_down_is_told_at_the_start():
    with pytest.raises(ToolServerError, match=r"http://127\.0\.0\.1:9 cannot connect"):
        asyncio.run(OpenEnvTools(url="http://127.0.0.1:9").start())


def test_a_call_without_an_answer_loses_the_environment(server, serve):
    tools = OpenEnvTools(url=serve(server.app()) + "/counter")

    async def play():
        session = await tools.open(episode("one"))
        server.misbehave = "hang"
        try:
            await session.call("count", {}, timeout_s=0.2)
        finally:
            await session.close()

    with pytest.raises(EnvironmentLostError, match="gave no answer to 'step' within"):
        asyncio.run(play())
