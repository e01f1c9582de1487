"""Calls of other models: answered by their providers, in the same trace, never trained."""

import asyncio
import json

import anthropic
import httpx2
import openai
import pytest
from openai import AsyncOpenAI
from tests.gateway.conftest import MemoryStore, TalkingEngine, running_gateway

from agentrl_core.batching.credit import is_trained
from agentrl_core.config.sampling_sections import UpstreamConfig
from agentrl_core.types import FinishReason

USER = [{"role": "user", "content": "is it good?"}]


@pytest.fixture
def judging(chat, model_dir):
    """The engine of the provider."""
    engine = TalkingEngine(chat, model_dir)
    engine.replies = ["very good"]
    return engine


@pytest.fixture
def provider(chat, judging, open_session, monkeypatch):
    """Another gateway, which needs a key like any provider."""
    with running_gateway(chat, judging, MemoryStore()) as gateway:
        monkeypatch.setenv("JUDGE_KEY", open_session(gateway).api_key)
        yield gateway


@pytest.fixture
def gateway(make_gateway, provider):
    judge = UpstreamConfig(url=f"{provider.url}/v1", model="judge-large", api_key_env="JUDGE_KEY")
    return make_gateway(upstreams={"judge": judge})


def ask(session, **options):
    async def asking():
        async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0) as client:
            return await client.chat.completions.create(model="judge", messages=USER, **options)

    return asyncio.run(asking())


def test_a_mapped_model_is_answered_by_its_provider(session, engine, judging, store):
    reply = ask(session, temperature=0.0)
    assert reply.choices[0].message.content == "very good"
    assert reply.model == "judge"
    assert engine.log == []
    prompt = len(judging.log[0].request.prompt_ids)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (prompt, len(judging.log[0].ids))
    (stored,) = store.interactions
    assert (stored.id, stored.upstream, stored.model) == (reply.id, "judge", "judge")
    assert stored.output == {"role": "assistant", "content": "very good"}
    assert stored.messages == tuple(USER)
    assert not stored.trainable
    assert not is_trained(stored)
    assert (stored.prompt_ids, stored.output_ids, stored.logprobs) == ((), (), ())


def test_no_key_is_in_what_is_kept(session, store, monkeypatch, caplog):
    caplog.set_level("DEBUG")
    ask(session)
    kept = repr(store.interactions) + caplog.text
    assert session.api_key not in kept
    assert "sk-agentrl-" not in kept


def test_a_stream_comes_through_as_it_comes(session, store):
    async def reading():
        async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0) as client:
            options = {"stream": True, "stream_options": {"include_usage": True}}
            stream = await client.chat.completions.create(model="judge", messages=USER, **options)
            return [chunk async for chunk in stream]

    chunks = asyncio.run(reading())
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert "".join(texts) == "very good"
    assert len(texts) > 1
    assert chunks[-1].usage.completion_tokens > 0
    assert store.interactions[0].id == chunks[0].id


def test_calls_and_logprobs_of_a_provider_come_through(session, judging, call_text, tools, store):
    judging.replies = [call_text("add", '{"a": 1, "b": 2}'), "fine"]
    called = ask(session, tools=tools).choices[0]
    assert called.finish_reason == "tool_calls"
    assert called.message.tool_calls[0].function.arguments == '{"a": 1, "b": 2}'
    told = ask(session, logprobs=True).choices[0].logprobs.content
    assert "".join(entry.token for entry in told).startswith("fine")
    assert [entry.logprob for entry in told] == pytest.approx(judging.log[1].logprobs)


@pytest.mark.parametrize("stream", [False, True])
def test_other_apis_reach_the_same_provider(gateway, session, store, stream):
    async def asking():
        async with anthropic.AsyncAnthropic(
            base_url=session.base_url, api_key=session.api_key, max_retries=0
        ) as client:
            options = {"model": "judge", "max_tokens": 100, "messages": USER}
            if not stream:
                return await client.messages.create(**options)
            async with client.messages.stream(**options) as events:
                return await events.get_final_message()

    message = asyncio.run(asking())
    assert message.content[0].text == "very good"
    assert (store.interactions[0].api, store.interactions[0].upstream) == ("messages", "judge")


def test_the_trace_holds_both_and_the_policy_goes_on_from_its_own(send, session, engine, store):
    first = send(session, {"messages": USER}).json()["choices"][0]["message"]
    send(session, {"model": "judge", "messages": [*USER, first, *USER]})
    send(session, {"messages": [*USER, first, *USER]})
    assert [item.upstream for item in store.interactions] == ["", "judge", ""]
    assert [item.seq for item in store.interactions] == [0, 1, 2]
    assert store.interactions[2].parent == store.interactions[0].id
    one, two = engine.log
    assert two.request.prompt_ids[: len(one.request.prompt_ids) + len(one.ids)] == one.request.prompt_ids + one.ids


def test_a_response_goes_on_with_another_model(session, judging, chat):
    async def asking():
        async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0) as client:
            first = await client.responses.create(model="default", input="hello")
            return await client.responses.create(model="judge", input="good?", previous_response_id=first.id)

    assert asyncio.run(asking()).output_text == "very good"
    prompt = chat.decode(judging.log[0].request.prompt_ids)
    assert prompt.index("hello") < prompt.index("assistant\nok") < prompt.index("good?")


def test_a_providers_failure_is_told_and_not_kept(session, monkeypatch, store):
    monkeypatch.setenv("JUDGE_KEY", "sk-wrong")
    with pytest.raises(openai.InternalServerError) as caught:
        ask(session)
    assert caught.value.status_code == 502
    assert "sk-wrong" not in str(caught.value)
    assert store.interactions == []


def test_a_retry_gets_the_reply_that_was_missed(send, session, judging, store):
    body = {"model": "judge", "messages": USER}
    first, again = (send(session, body, headers={"idempotency-key": "k1"}).json() for _ in range(2))
    assert again == first
    assert len(judging.log) == len(store.interactions) == 1


def test_an_agent_that_leaves_ends_the_call_at_the_provider(gateway, session, judging, store):
    asyncio.run(judging.pause())

    async def scenario():
        async with httpx2.AsyncClient(timeout=60) as client:
            url = f"{session.base_url}/v1/chat/completions"
            call = asyncio.create_task(client.post(url, json={"model": "judge", "messages": USER}))
            assert await asyncio.to_thread(judging.begun[0].wait, 5)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

    asyncio.run(scenario())
    assert judging.ended[0].wait(5)
    assert judging.log[0].finish_reason is FinishReason.ABORT
    assert store.interactions == []


def test_prompts_without_messages_stay_with_the_policy(send, session, judging):
    reply = send(session, {"model": "judge", "prompt": "once"}, path="/v1/completions")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")
    assert judging.log == []


def test_an_ended_episode_asks_nobody(gateway, send, session, judging):
    asyncio.run(gateway.close_session(session))
    assert send(session, {"model": "judge", "messages": USER}).status_code == 410
    assert judging.log == []


def test_a_call_that_is_not_trainable_is_the_policys_own_and_free(gateway, send, session, engine, store):
    body = {"messages": USER, "temperature": 0.0}
    reply = send(session, body, headers={"x-agentrl-trainable": "false"})
    assert reply.status_code == 200
    (stored,) = store.interactions
    assert (stored.trainable, stored.upstream, stored.sampling.temperature) == (False, "", 0.0)
    assert stored.output_ids == engine.log[0].ids
    assert gateway.forced_temperatures == 0
    wrong = send(session, body, headers={"x-agentrl-trainable": "perhaps"})
    assert (wrong.status_code, json.loads(wrong.content)["error"]["code"]) == (400, "invalid_value")


def test_the_models_are_listed(send, session):
    listed = send(session, None, path="/v1/models", method="GET").json()
    assert {"default", "judge"} <= {model["id"] for model in listed["data"]}
