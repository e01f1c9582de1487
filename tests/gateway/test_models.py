"""The models that agents may ask for, as the SDKs list them."""

import pytest
from anthropic import AsyncAnthropic

from agentrl_core.config.sampling_sections import UpstreamConfig


@pytest.fixture
def gateway(make_gateway):
    judge = UpstreamConfig(url="http://127.0.0.1:9/v1", model="judge-1")
    return make_gateway(upstreams={"judge": judge})


def test_the_policy_and_the_upstreams_are_listed(talk, session):
    async def scenario(client):
        return [(model.id, model.owned_by) async for model in client.models.list()]

    assert talk(session, scenario) == [("default", "agentrl"), ("judge", "upstream")]


@pytest.mark.parametrize("name", ["default", "gpt-9", "Qwen/Qwen3-4B", "a b"])
def test_any_other_name_is_the_policy(talk, session, name):
    model = talk(session, lambda client: client.models.retrieve(name))
    assert (model.id, model.owned_by, model.object) == (name, "agentrl", "model")


def test_anthropics_client_reads_them_too(talk, session, gateway):
    async def scenario(_):
        client = AsyncAnthropic(base_url=session.base_url, api_key=session.api_key, http_client=gateway.http_client)
        return [model.id async for model in client.models.list()], (await client.models.retrieve("judge")).display_name

    assert talk(session, scenario) == (["default", "judge"], "judge")


def test_strangers_are_told_nothing(gateway, session, send_to):
    for path in ("/v1/models", "/v1/models/default"):
        assert send_to(gateway, session, b"", method="GET", path=path, token=False).status_code == 401
        assert send_to(gateway, session, {}, path=path).status_code == 405
