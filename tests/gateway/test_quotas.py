"""One session has a bounded share of the engine; what is beyond comes again later, as SDKs do by themselves."""

import asyncio
import json

import anthropic
import openai
import pytest

from agentrl_core.errors import RequestError
from agentrl_core.gateway.admission import Admission

USER = [{"role": "user", "content": "hello"}]


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def test_a_session_generates_so_many_replies_at_once_and_others_go_on(make_gateway, open_session, engine):
    gateway = make_gateway(max_session_replies=2)
    greedy, other = open_session(gateway), open_session(gateway)

    async def post(session):
        body = json.dumps({"messages": USER}).encode()
        return await gateway.http_client.post(f"{session.base_url}/v1/chat/completions", content=body)

    async def scenario():
        await engine.pause()
        running = [asyncio.ensure_future(post(greedy)) for _ in range(2)]
        await until(lambda: len(greedy.running) == 2)
        refused = await post(greedy)
        running.append(asyncio.ensure_future(post(other)))
        await until(lambda: other.running)
        await engine.resume()
        return refused, [(await one).status_code for one in running], (await post(greedy)).status_code

    refused, others, later = asyncio.run(scenario())
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert "gateway.max_session_replies" in refused.json()["error"]["message"]
    assert (others, later) == ([200] * 3, 200)


def test_each_sdk_knows_the_refusal(make_gateway, open_session):
    gateway = make_gateway(max_session_calls_per_minute=1)
    session = open_session(gateway)

    async def scenario():
        async with openai.AsyncOpenAI(
            base_url=session.base_url, api_key="x", http_client=gateway.http_client, max_retries=0
        ) as client:
            await client.chat.completions.create(model="default", messages=USER)
            with pytest.raises(openai.RateLimitError, match="more than 1 calls a minute") as first:
                await client.responses.create(model="default", input="hello")
        async with anthropic.AsyncAnthropic(
            base_url=session.base_url, api_key="x", http_client=gateway.http_client, max_retries=0
        ) as client:
            with pytest.raises(anthropic.RateLimitError, match="more than 1 calls a minute") as second:
                await client.messages.create(model="default", max_tokens=9, messages=USER)
        return [error.value.response.headers["retry-after"] for error in (first, second)]

    assert all(0 < float(wait) <= 60 for wait in asyncio.run(scenario()))


def test_calls_come_back_over_a_minute(gateway, session):
    now = [0.0]
    admission = Admission(
        pause_timeout_s=1.0, most_replies=1, calls_per_minute=4, load=gateway._online.load, clock=lambda: now[0]
    )

    def taken():
        try:
            asyncio.run(admission.admit(session))
        except RequestError as error:
            return error.retry_after_s
        return None

    assert [taken() for _ in range(5)] == [None] * 4 + [15.0]
    now[0] = 10.0
    assert taken() == pytest.approx(5.0)
    now[0] = 15.0
    assert [taken(), taken()] == [None, 15.0]
    now[0] = 1000.0
    assert [taken() for _ in range(5)] == [None] * 4 + [15.0]
