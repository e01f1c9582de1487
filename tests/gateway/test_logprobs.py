"""Logprobs and the likeliest tokens, as the OpenAI SDK reads them in both of its APIs."""

import math

import pytest

from agentrl_core.types import Chunk

USER = [{"role": "user", "content": "hello"}]


@pytest.fixture
def likely(engine, monkeypatch):
    """Let the engine tell of every position the sampled token, then the tokens 1, 2, … with falling logprobs."""
    generate = engine.generate

    async def telling(request):
        async for chunk in generate(request):
            top = tuple(
                ((token, -0.5), *((other, -1.0 * other) for other in range(1, request.top_logprobs)))
                if request.top_logprobs
                else ()
                for token in chunk.ids
            )
            yield Chunk(
                ids=chunk.ids,
                logprobs=chunk.logprobs,
                version=chunk.version,
                finish_reason=chunk.finish_reason,
                top_logprobs=top if request.top_logprobs else (),
            )

    monkeypatch.setattr(engine, "generate", telling)
    return engine


def ask(client, **options):
    return client.chat.completions.create(**{"model": "default", "messages": USER, "logprobs": True, **options})


@pytest.mark.parametrize("stream", [False, True])
def test_each_token_comes_with_its_likeliest(talk, session, likely, chat, stream):
    likely.replies = ["aé"]

    async def scenario(client):
        if not stream:
            return (await ask(client, top_logprobs=3)).choices[0].logprobs.content
        chunks = [chunk async for chunk in await ask(client, top_logprobs=3, stream=True)]
        return [item for chunk in chunks if chunk.choices[0].logprobs for item in chunk.choices[0].logprobs.content]

    content = talk(session, scenario)
    assert [item.logprob for item in content] == list(likely.log[0].logprobs)
    assert [item.token for item in content] == ["a", "\ufffd", "\ufffd", "<|im_end|>"]
    for item, token in zip(content, likely.log[0].ids, strict=True):
        assert [top.token for top in item.top_logprobs] == [chat.decode([one]) for one in (token, 1, 2)]
        assert [top.logprob for top in item.top_logprobs] == [-0.5, -1.0, -2.0]
    assert content[0].top_logprobs[0].bytes == [97]
    assert likely.log[0].request.top_logprobs == 3


def test_several_choices_keep_their_logprobs(talk, session, likely, store):
    likely.replies = ["one", "two"]
    reply = talk(session, lambda client: ask(client, n=2, top_logprobs=2))
    for choice, interaction in zip(reply.choices, store.interactions, strict=True):
        assert tuple(item.logprob for item in choice.logprobs.content) == interaction.logprobs
        assert all(len(item.top_logprobs) == 2 for item in choice.logprobs.content)


@pytest.mark.parametrize("options", [{"logprobs": False}, {"logprobs": None}])
def test_nothing_is_told_unasked(talk, session, likely, options):
    assert talk(session, lambda client: ask(client, **options)).choices[0].logprobs is None
    assert likely.log[0].request.top_logprobs == 0


@pytest.mark.parametrize("stream", [False, True])
def test_the_old_api_names_the_likeliest_by_their_text(talk, session, likely, chat, stream):
    likely.replies = ["ab"]

    async def scenario(client):
        options = {"model": "default", "prompt": "x", "logprobs": 2}
        if not stream:
            return [(await client.completions.create(**options)).choices[0].logprobs]
        chunks = [chunk async for chunk in await client.completions.create(**options, stream=True)]
        return [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]

    parts = talk(session, scenario)
    assert [top for part in parts for top in part.top_logprobs] == [
        {text: -0.5, chat.decode([1]): -1.0} for text in ("a", "b", "<|im_end|>")
    ]


def test_every_logprob_is_a_number_that_json_has(talk, session, likely):
    content = talk(session, lambda client: ask(client, top_logprobs=20)).choices[0].logprobs.content
    assert all(math.isfinite(top.logprob) for item in content for top in item.top_logprobs)
    assert all(len(item.top_logprobs) == 20 for item in content)
