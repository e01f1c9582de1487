"""Several choices for one prompt, thoughts and usage, as the OpenAI SDK sees them."""

import json

import pytest
from openai import OpenAI

from agentrl_core.api.reasoning import THINK
from agentrl_core.chat import Chat

USER = [{"role": "user", "content": "hello"}]


def ask(client, **options):
    return client.chat.completions.create(**{"model": "default", "messages": USER, **options})


@pytest.mark.parametrize("stream", [False, True])
def test_choices_are_interactions_of_their_own(talk, session, engine, store, stream):
    engine.replies = ["one", "two", "three"]

    async def scenario(client):
        if not stream:
            reply = await ask(client, n=3)
            return reply.id, [choice.message.content for choice in reply.choices], reply.usage
        async with client.chat.completions.stream(
            model="default", messages=USER, n=3, stream_options={"include_usage": True}
        ) as events:
            final = await events.get_final_completion()
            return final.id, [choice.message.content for choice in final.choices], final.usage

    reply_id, contents, usage = talk(session, scenario)
    assert sorted(contents) == ["one", "three", "two"]
    assert [one.id for one in store.interactions] == [reply_id, f"{reply_id}.1", f"{reply_id}.2"]
    assert [one.seq for one in store.interactions] == [0, 1, 2]
    assert [one.output["content"] for one in store.interactions] == contents
    logged = {one.request.request_id: one for one in engine.log}
    assert all(logged[one.id].ids == one.output_ids for one in store.interactions)
    assert len({one.request.sampling.seed for one in engine.log}) == 3
    assert usage.prompt_tokens == len(engine.log[0].request.prompt_ids)  # one prompt
    assert usage.completion_tokens == sum(len(one.ids) for one in engine.log)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_seeds_go_on_behind_the_choices(session, send, engine):
    send(session, {"messages": USER, "n": 3})
    send(session, {"messages": USER})
    assert len({one.request.sampling.seed for one in engine.log}) == 4


def test_the_conversation_goes_on_from_the_choice_that_was_taken(session, send, engine, store):
    engine.replies = ["left", "right", "on"]
    choices = send(session, {"messages": USER, "n": 2}).json()["choices"]
    taken = choices[1]["message"]
    send(session, {"messages": [*USER, taken, *USER]})
    parent = next(one for one in store.interactions if {**one.output, "refusal": None} == taken)
    assert store.interactions[2].parent == parent.id == f"{store.interactions[0].id}.1"


def test_one_failing_choice_fails_the_call_and_stores_nothing(session, send, engine, store):
    engine.replies = ["fine", ValueError("broken"), "fine"]
    assert send(session, {"messages": USER, "n": 3}).status_code == 500
    assert store.interactions == []


def test_a_stream_says_of_every_chunk_which_choice_it_is(session, send, engine):
    engine.replies = ["ab", "cd"]
    body = {"messages": USER, "n": 2, "stream": True, "return_token_ids": True, "logprobs": True}
    events = [line[6:] for line in send(session, body).text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    texts, ids, ends, logprobs = ["", ""], [[], []], [None, None], [[], []]
    for event in map(json.loads, events):
        (choice,) = event["choices"]
        index = choice["index"]
        assert ends[index] is None
        texts[index] += choice["delta"].get("content", "")
        ids[index] += choice["token_ids"]
        ends[index] = choice["finish_reason"]
        logprobs[index] += [item["logprob"] for item in (choice["logprobs"] or {"content": []})["content"]]
    assert texts == ["ab", "cd"]
    assert ends == ["stop", "stop"]
    by_text = {engine.chat.decode(one.ids): one for one in engine.log}
    for index, text in enumerate(texts):
        logged = by_text[f"{text}<|im_end|>"]
        assert (ids[index], logprobs[index]) == (list(logged.ids), list(logged.logprobs))


@pytest.fixture
def thinking(model_dir, make_gateway, open_session, engine, monkeypatch):
    """A session of a policy that thinks."""
    gateway = make_gateway()
    monkeypatch.setattr(gateway._policy_calls, "chat", Chat.from_directory(model_dir, reasoning=THINK))
    return gateway, open_session(gateway)


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_told_apart_and_counted(thinking, engine, store, tools, call_text, stream):
    _, session = thinking
    engine.replies = ["<think>\nwhat é\n</think>\n\nSo:\n" + call_text("add", "{}")]
    with OpenAI(base_url=f"{session.base_url}/v1", api_key=session.api_key, max_retries=0) as client:
        if stream:
            chunks = list(ask(client, tools=tools, stream=True, stream_options={"include_usage": True}))
            deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
            thought = "".join((delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas)
            content = "".join(delta.content or "" for delta in deltas)
            calls = [call for delta in deltas for call in delta.tool_calls or ()]
            usage = chunks[-1].usage
        else:
            reply = ask(client, tools=tools)
            message, usage = reply.choices[0].message, reply.usage
            thought, content, calls = message.model_extra["reasoning_content"], message.content, message.tool_calls
    assert (thought, content, [call.function.name for call in calls]) == ("what é", "So:", ["add"])
    # As the tokenizer counts it: the thought's own ids were sampled in other pieces.
    assert usage.completion_tokens_details.reasoning_tokens == len(engine.chat.encode("what é")) > 0
    assert store.interactions[0].output["reasoning_content"] == "what é"


def test_cached_prompt_tokens_are_told(talk, session, engine, monkeypatch):
    whole = engine.generate

    async def generate(request):
        async for chunk in whole(request):
            yield chunk.__class__(
                **{**{f: getattr(chunk, f) for f in chunk.__slots__ if f[0] != "_"}, "cached_tokens": 5}
            )

    monkeypatch.setattr(engine, "generate", generate)
    usage = talk(session, lambda client: ask(client, n=2)).usage
    assert usage.prompt_tokens_details.cached_tokens == 5
