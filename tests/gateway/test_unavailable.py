"""A model server that is busy or away: agents are told in a way that makes their SDK try again, and the run goes on."""

import asyncio
import json

import anthropic
import openai
import pytest

from agentrl_core.errors import UnavailableError
from agentrl_core.gateway.serving.web import HttpRequest
from agentrl_core.types import FinishReason

USER = [{"role": "user", "content": "hello"}]


def ask_openai(session, **options):
    async def asking():
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, **options) as client:
            return await client.chat.completions.create(model="default", messages=USER)

    return asyncio.run(asking())


def ask_anthropic(session, **options):
    async def asking():
        async with anthropic.AsyncAnthropic(base_url=session.base_url, api_key=session.api_key, **options) as client:
            return await client.messages.create(model="default", messages=USER, max_tokens=9)

    return asyncio.run(asking())


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize(("ask", "base"), [(ask_openai, openai), (ask_anthropic, anthropic)])
def test_the_status_and_the_wait_reach_each_sdk_in_its_own_shape(gateway, session, engine, ask, base, status):
    engine.replies = [UnavailableError("the server is busy", status=status, retry_after_s=2.2)]
    with pytest.raises(base.APIStatusError, match="the server is busy") as refused:
        ask(session, max_retries=0)
    expected = base.RateLimitError if status == 429 else base.InternalServerError
    assert isinstance(refused.value, expected)
    assert (refused.value.status_code, refused.value.response.headers["retry-after"]) == (status, "3")
    assert gateway.fatal is None
    assert session.refusal.startswith(f"{status} ")


@pytest.mark.parametrize("ask", [ask_openai, ask_anthropic])
def test_an_sdk_tries_again_by_itself(gateway, session, engine, ask):
    engine.replies = [UnavailableError("away", status=503, retry_after_s=0.0), "here"]
    assert "here" in ask(session, max_retries=1).model_dump_json()
    assert gateway.fatal is None


@pytest.mark.parametrize("body", [{"stream": True}, {}])
def test_a_stream_has_the_status_of_what_fails_before_its_first_token(send, session, engine, gateway, body):
    engine.replies = [UnavailableError("away", status=503, retry_after_s=2.0)]
    reply = send(session, {"messages": USER, **body})
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "2")
    assert reply.json()["error"]["code"] == "engine_unavailable"
    assert gateway.fatal is None


def test_what_fails_in_the_middle_of_a_stream_is_told_where_the_client_reads(session, engine, gateway):
    async def read():
        client = openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0)
        async with client, await client.chat.completions.create(model="default", messages=USER, stream=True) as reply:
            return [chunk.choices[0].delta.content async for chunk in reply]

    engine.break_at = 2
    with pytest.raises(openai.APIError, match="broke"):
        asyncio.run(read())
    assert gateway.fatal is None


def test_a_streamed_reply_that_nobody_reads_is_aborted(gateway, session, engine):
    """Its first token was sampled before the head was sent."""

    async def leave():
        body = json.dumps({"messages": USER, "stream": True}).encode()
        headers = {"authorization": f"Bearer {session.api_key}"}
        request = HttpRequest(method="POST", path="/v1/chat/completions", headers=headers, body=body)
        response = await gateway.router.handle(request)
        assert session.running
        await response.body.aclose()

    engine.replies = ["a long reply"]
    asyncio.run(leave())
    assert not session.running
    (logged,) = engine.log
    assert logged.finish_reason is FinishReason.ABORT
