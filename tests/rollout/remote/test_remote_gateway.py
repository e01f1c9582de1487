"""Episodes on serving members: the same records as in process, and nothing lost with a server."""

import asyncio

import attrs
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from tests.rollout.token_level.test_token_level import Retrying

from agentrl_core.types import Outcome


async def by_openai(data, base_url, api_key, http_client):
    client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
    reply = await client.chat.completions.create(model="policy", messages=data["messages"])
    return float(reply.choices[0].message.content == "4")


async def by_openai_stream(data, base_url, api_key, http_client):
    client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
    text = ""
    async for chunk in await client.chat.completions.create(model="policy", messages=data["messages"], stream=True):
        text += chunk.choices[0].delta.content or ""
    return float(text == "4")


async def by_anthropic(data, base_url, api_key, http_client):
    client = AsyncAnthropic(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
    reply = await client.messages.create(model="policy", messages=data["messages"], max_tokens=50)
    return float(reply.content[0].text == "4")


async def by_its_own_client(data, base_url, api_key):
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        reply = await client.chat.completions.create(model="policy", messages=data["messages"])
    return float(reply.choices[0].message.content == "4")


def comparable(interactions):
    """Return interactions without what differs from one session to the next."""
    plain = {"id": "", "record_id": "", "parent": None, "started_at": 0.0, "finished_at": 0.0, "retry_key": ""}
    return [attrs.evolve(interaction, **plain) for interaction in interactions]


@pytest.mark.parametrize("agent", [by_openai, by_openai_stream, by_anthropic, by_its_own_client, Retrying()])
def test_an_episode_is_the_same_as_in_process(agent, serving, sample, episode, chat, store):
    def sampled(gateway):
        serving.engine.replies = ["5", "4"] if isinstance(agent, Retrying) else ["4"]
        return episode(agent, gateway)

    here = asyncio.run(sampled(serving.gateway))
    there = sample(sampled, serving, chat_of=type(chat).from_directory)
    assert (there.record.outcome, there.record.reward) == (Outcome.SCORED, 1.0)
    assert comparable(there.interactions) == comparable(here.interactions)
    assert list(there.interactions) == store.interactions[there.record.id]
    assert serving.gateway.member_sessions == 0
