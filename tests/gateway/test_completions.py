"""Legacy completions through the real OpenAI SDK: prompts go on as they are, turn after turn by exact ids."""

from itertools import pairwise

import pytest

from agentrl_core.chat.drift import drift_of
from agentrl_core.types import Episode, Outcome, Record


def complete(client, prompt, **options):
    return client.completions.create(**{"model": "default", "prompt": prompt, **options})


async def collect(stream):
    return [chunk async for chunk in await stream]


def test_a_text_goes_on_without_a_template(talk, session, engine, store, chat):
    engine.replies = [" upon a <think>time</think>"]
    reply = talk(session, lambda client: complete(client, "Once"))
    (logged,), (interaction,) = engine.log, store.interactions
    assert reply.choices[0].text == " upon a <think>time</think>"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.object == "text_completion"
    assert reply.id == interaction.id
    assert reply.id.startswith("cmpl-")
    assert logged.request.prompt_ids == tuple(chat.encode("Once"))
    assert reply.usage.prompt_tokens == len(logged.request.prompt_ids)
    assert reply.usage.completion_tokens == len(logged.ids)
    assert (interaction.api, interaction.output_ids, interaction.logprobs) == (
        "completions",
        logged.ids,
        logged.logprobs,
    )
    assert interaction.messages == ({"role": "user", "content": "Once"},)


def test_a_text_without_a_template_drifts_from_none(session, send, store, chat):
    send(session, {"model": "default", "prompt": "Find"}, path="/v1/completions")
    record = Record(
        id=session.record_id, run_id="run", task_id="t", group_id="g", sample_index=0, outcome=Outcome.SCORED
    )
    episode = Episode(record=record, interactions=tuple(store.interactions))
    assert not drift_of(chat, episode, store.interactions[0])


def test_token_ids_go_on_as_they_are(talk, session, engine, store):
    reply = talk(session, lambda client: complete(client, [70, 71, 72], extra_body={"return_token_ids": True}))
    assert engine.log[0].request.prompt_ids == (70, 71, 72)
    assert tuple(reply.choices[0].model_extra["token_ids"]) == engine.log[0].ids
    assert tuple(reply.choices[0].model_extra["prompt_token_ids"]) == (70, 71, 72)


@pytest.mark.parametrize("prompts", [["one", "three"], [[70, 71], [72]]])
@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_get_n_replies_each(talk, session, engine, store, chat, prompts, stream):
    engine.replies = ["a", "b", "c", "d"]

    async def scenario(client):
        if not stream:
            reply = await complete(client, prompts, n=2)
            return [choice.text for choice in reply.choices], reply.usage.prompt_tokens
        chunks = await collect(complete(client, prompts, n=2, stream=True, stream_options={"include_usage": True}))
        texts = ["", "", "", ""]
        for chunk in chunks[:-1]:
            texts[chunk.choices[0].index] += chunk.choices[0].text
        return texts, chunks[-1].usage.prompt_tokens

    texts, prompt_tokens = talk(session, scenario)
    ids = [tuple(chat.encode(prompt)) if isinstance(prompt, str) else tuple(prompt) for prompt in prompts]
    by_id = {one.request.request_id: one for one in engine.log}
    assert sorted(texts) == ["a", "b", "c", "d"]
    assert prompt_tokens == sum(map(len, ids))
    first = next(one.id for one in store.interactions if "." not in one.id)
    for index, text in enumerate(texts):
        logged = by_id[f"{first}.{index}" if index else first]
        assert logged.request.prompt_ids == ids[index // 2]
        assert chat.decode(logged.ids).removesuffix("<|im_end|>") == text


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_begins_with_the_prompt(talk, session, engine, chat, stream):
    engine.replies = [" there"]
    prompt = chat.encode("hello")

    async def scenario(client):
        if not stream:
            return (await complete(client, prompt, echo=True)).choices[0].text
        return "".join(
            chunk.choices[0].text for chunk in await collect(complete(client, prompt, echo=True, stream=True))
        )

    assert talk(session, scenario) == "hello there"


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_have_the_old_shape(talk, session, engine, stream):
    engine.replies = ["aéb"]

    async def scenario(client):
        if not stream:
            return [(await complete(client, "x", logprobs=0)).choices[0].logprobs]
        chunks = await collect(complete(client, "x", logprobs=0, stream=True))
        return [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]

    parts = talk(session, scenario)
    assert [token for part in parts for token in part.tokens] == ["a", "\ufffd", "\ufffd", "b", "<|im_end|>"]
    assert tuple(value for part in parts for value in part.token_logprobs) == engine.log[0].logprobs
    assert [offset for part in parts for offset in part.text_offset] == [0, 1, 1, 2, 3]
    assert all(part.top_logprobs is None for part in parts)


@pytest.mark.parametrize("stream", [False, True])
def test_text_ends_before_a_stop_string(talk, session, engine, store, stream):
    engine.replies = ["Thought\nObservation: none"]

    async def scenario(client):
        if not stream:
            return (await complete(client, "x", stop="\nObservation:")).choices[0].text
        chunks = await collect(complete(client, "x", stop=["\nObservation:"], stream=True))
        return "".join(chunk.choices[0].text for chunk in chunks)

    assert talk(session, scenario) == "Thought"
    assert store.interactions[0].output_ids == engine.log[0].ids


def test_a_stream_comes_token_by_token(talk, session, engine):
    engine.replies = ["grüße"]
    chunks = talk(session, lambda client: collect(complete(client, "x", stream=True)))
    assert [chunk.choices[0].text for chunk in chunks] == ["g", "r", "ü", "ß", "e", ""]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 5 + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


@pytest.mark.parametrize(
    ("ending", "options", "shown"),
    [
        ("<|im_end|>", {}, "<|im_end|>"),  # the agent's own template ends the turn
        ("\nObservation:", {"stop": ["\nObservation:"]}, "\nObservation:"),
        ("", {"max_tokens": 6}, ""),
    ],
)
def test_a_text_that_shows_the_whole_output_goes_on_from_its_exact_ids(
    session, send, engine, store, chat, ending, options, shown
):
    replies = ["Think1", "Think2", "Think3"]
    engine.replies = [reply + (ending if "stop" in options else "") for reply in replies]
    prompt = "Question: é?\n"
    for reply in replies:
        text = send(session, {"prompt": prompt, **options}, path="/v1/completions").json()["choices"][0]["text"]
        assert text == reply
        prompt += text + shown + " go on\n"
    assert [one.parent for one in store.interactions] == [None, store.interactions[0].id, store.interactions[1].id]
    for earlier, later in pairwise(engine.log):
        known = earlier.request.prompt_ids + earlier.ids
        assert later.request.prompt_ids[: len(known)] == known
        assert chat.decode(later.request.prompt_ids[len(known) :]) == " go on\n"
    assert store.interactions[2].messages == ({"role": "user", "content": " go on\n"},)
    assert store.interactions[2].prompt_ids == tuple(chat.encode(" go on\n"))


def test_a_text_that_leaves_out_how_the_output_ended_begins_anew(session, send, engine, store, chat):
    engine.replies = ["one", "two"]
    send(session, {"prompt": "a "}, path="/v1/completions")
    send(session, {"prompt": "a one and"}, path="/v1/completions")
    assert [one.parent for one in store.interactions] == [None, None]
    assert engine.log[1].request.prompt_ids == tuple(chat.encode("a one and"))


def test_ids_go_on_from_the_longest_call_that_they_begin_with(session, send, engine, store):
    engine.replies = ["ab", "cd", "ef"]
    send(session, {"prompt": [70, 71]}, path="/v1/completions")
    second = [70, 71, *engine.log[0].ids, 80]
    send(session, {"prompt": second}, path="/v1/completions")
    send(session, {"prompt": [*second, *engine.log[1].ids, 81, 82]}, path="/v1/completions")
    send(session, {"prompt": [70, 72]}, path="/v1/completions")
    first = store.interactions[0]
    assert [one.parent for one in store.interactions] == [None, first.id, store.interactions[1].id, None]
    assert [one.prompt_ids for one in store.interactions] == [(70, 71), (80,), (81, 82), (70, 72)]
    assert engine.log[2].request.prompt_ids == (*second, *engine.log[1].ids, 81, 82)


def test_another_sessions_calls_are_not_gone_on_from(gateway, open_session, send_to, engine, store):
    one, other = open_session(gateway), open_session(gateway)
    send_to(gateway, one, {"prompt": [70]}, path="/v1/completions")
    send_to(gateway, other, {"prompt": [70, *engine.log[0].ids, 71]}, path="/v1/completions")
    assert [item.parent for item in store.interactions] == [None, None]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "best_of": 3, "n": 2}, "best_of"),
        ({"prompt": "a", "echo": True, "logprobs": 1}, "echo"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "n": 0}, "n"),
    ],
)
def test_bad_requests_name_the_field(session, send, engine, store, options, param):
    reply = send(session, options, path="/v1/completions")
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert param in reply.json()["error"]["message"]
    assert engine.log == store.interactions == []


def test_best_of_n_that_equals_n_is_n(session, send, engine):
    assert len(send(session, {"prompt": "a", "best_of": 2, "n": 2}, path="/completions").json()["choices"]) == 2
