"""What is found before a run starts: servers that are away, models that they do not know, our own gateway."""

import asyncio
import contextlib

import pytest

from agentrl_core.errors import ConfigError
from agentrl_judge.judge import Judge
from agentrl_judge.testing import JudgeServer

DEAD = {"base_url": "http://127.0.0.1:9/v1", "model": "dead-1"}


def checked(*servers, before=(), key=None, options=None, **known):
    async def scenario():
        async with contextlib.AsyncExitStack() as stack:
            for server in servers:
                await stack.enter_async_context(server.up())
            models = [*before, *(server.model | ({"api_key_env": key} if key else {}) for server in servers)]
            return await Judge(models=models, **(options or {})).check(**known)

    return asyncio.run(scenario())


def test_a_server_that_knows_its_model_is_fine():
    assert checked(JudgeServer()) == []


def test_an_unknown_model_is_an_error_with_the_nearest():
    with pytest.raises(ConfigError, match=r"has no model judge-1 \(did you mean judge-10\?\)"):
        checked(JudgeServer(models=["judge-10", "other"]), JudgeServer())


def test_a_server_that_does_not_tell_its_models_is_a_note():
    (note,) = checked(JudgeServer(models=404))
    assert "does not list its models" in note


def test_a_key_for_chats_alone_is_a_note():
    (note,) = checked(JudgeServer(models=403))
    assert "does not list its models" in note


def test_a_key_that_is_wrong_is_an_error():
    with pytest.raises(ConfigError, match=r"refused its api_key \(status 401\)"):
        checked(JudgeServer(models=401))


def test_googles_names_are_known():
    assert checked(JudgeServer(models=["models/judge-1"])) == []


def test_servers_are_left_in_peace_where_the_config_says_so():
    server = JudgeServer(models=401)
    assert checked(server, before=[DEAD], options={"check": False}) == []
    assert server.headers == []


def test_a_judge_that_is_away_is_an_error_that_names_it():
    with pytest.raises(ConfigError, match=r"judge: dead-1 at http://127.0.0.1:9/v1 cannot be asked: .*no connection"):
        checked(before=[DEAD])


def test_a_judge_that_is_away_is_a_note_where_another_answers():
    (note,) = checked(JudgeServer(), before=[DEAD])
    assert "dead-1 at http://127.0.0.1:9/v1 cannot be asked" in note


def test_a_key_that_is_missing_or_refused_is_an_error(monkeypatch):
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(ConfigError, match="the variable JUDGE_KEY is empty or not set"):
        checked(JudgeServer(), key="JUDGE_KEY")


@pytest.mark.parametrize("gateway", ["http://127.0.0.1:9", "http://0.0.0.0:9", "http://localhost:9"])
def test_this_runs_gateway_is_no_judge(gateway):
    with pytest.raises(ConfigError, match="is this run's own gateway, so the policy would judge itself"):
        checked(before=[DEAD], gateway_url=gateway)


def test_another_port_of_this_machine_is_none_of_our_business():
    assert checked(JudgeServer(), gateway_url="http://127.0.0.1:1") == []
