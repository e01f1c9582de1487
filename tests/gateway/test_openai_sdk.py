"""The real OpenAI SDK talks to the gateway, in process and over a socket."""

import asyncio
import json

import openai
import pytest
from openai import OpenAI

from agentrl_core.errors import EngineError
from agentrl_core.types import FinishReason

USER = [{"role": "user", "content": "what is 1 + 2?"}]


def ask(client, **options):
    return client.chat.completions.create(**{"model": "default", "messages": USER, **options})


async def collect(stream):
    return [chunk async for chunk in await stream]


def test_a_reply_is_what_was_sampled_and_stored(talk, session, engine, store, chat):
    engine.replies = ["three é 晴"]
    reply = talk(session, ask)
    (interaction,), (logged,) = store.interactions, engine.log
    assert reply.choices[0].message.content == "three é 晴"
    assert "refusal" in reply.choices[0].message.model_fields_set  # OpenAI's document requires it
    assert reply._request_id == reply.id
    assert reply.choices[0].finish_reason == "stop"
    assert reply.id == interaction.id
    assert reply.id.startswith("chatcmpl-")
    assert reply.model == "default"
    assert reply.usage.prompt_tokens == len(logged.request.prompt_ids) == len(interaction.prompt_ids)
    assert reply.usage.completion_tokens == len(logged.ids)
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.prompt_tokens_details.cached_tokens == interaction.cached_tokens
    assert (interaction.output_ids, interaction.logprobs) == (logged.ids, logged.logprobs)
    assert tuple(interaction.output_versions) == logged.versions
    assert chat.decode(logged.request.prompt_ids) == chat.render(USER)
    assert interaction.messages == ({"role": "user", "content": "what is 1 + 2?"},)
    assert (interaction.record_id, interaction.seq, interaction.parent) == (session.record_id, 0, None)
    assert interaction.output == {"role": "assistant", "content": "three é 晴"}


def test_parallel_tool_calls(talk, session, engine, store, tools, call_text):
    engine.replies = ["Adding.\n" + call_text("add", '{"a":1}') + "\n" + call_text("add", '{"a": 2}')]
    reply = talk(session, lambda client: ask(client, tools=tools))
    message = reply.choices[0].message
    assert reply.choices[0].finish_reason == "tool_calls"
    assert message.content == "Adding."
    assert [call.function.arguments for call in message.tool_calls] == ['{"a":1}', '{"a": 2}']
    assert len({call.id for call in message.tool_calls}) == 2
    assert store.interactions[0].tools == tuple(tools)
    assert store.interactions[0].tool_errors == 0


def test_only_tool_calls_have_no_content(talk, session, engine, tools, call_text):
    engine.replies = [call_text("add", "{}")]
    assert talk(session, lambda client: ask(client, tools=tools)).choices[0].message.content is None


def test_a_malformed_call_is_shown_to_the_agent_and_counted(talk, session, engine, store, tools):
    engine.replies = ["<tool_call>{oops</tool_call>"]
    reply = talk(session, lambda client: ask(client, tools=tools))
    assert reply.choices[0].message.content == "<tool_call>{oops</tool_call>"
    assert reply.choices[0].finish_reason == "stop"
    assert store.interactions[0].tool_errors == 1


@pytest.mark.parametrize("options", [{}, {"tools": True, "tool_choice": "none"}])
def test_calls_are_text_for_an_agent_that_wants_none(talk, session, engine, tools, call_text, options):
    engine.replies = [call_text("add", "{}")]
    options = {**options, "tools": tools} if options else {}
    reply = talk(session, lambda client: ask(client, **options))
    assert reply.choices[0].message.content == call_text("add", "{}")
    assert reply.choices[0].message.tool_calls is None


def test_a_stream_comes_token_by_token(talk, session, engine, store):
    engine.replies = ["grüße 晴 now"]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = talk(session, lambda client: collect(ask(client, **options)))
    *body, usage = chunks
    pieces = [chunk.choices[0].delta.content for chunk in body if chunk.choices[0].delta.content]
    assert "".join(pieces) == "grüße 晴 now"
    assert len(pieces) == len("grüße 晴 now")
    assert body[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in body] == [None] * (len(body) - 1) + ["stop"]
    assert {chunk.id for chunk in chunks} == {store.interactions[0].id}
    assert usage.choices == []
    assert usage.usage.completion_tokens == len(engine.log[0].ids)


def test_a_stream_without_usage_has_none(talk, session):
    chunks = talk(session, lambda client: collect(ask(client, stream=True)))
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks)


def test_streamed_tool_calls_equal_unstreamed_ones(talk, session, engine, tools, call_text):
    text = "Well <b>.\n" + call_text("add", '{"a": 1}') + call_text("add", "{}")
    engine.replies = [text, text]

    async def scenario(client):
        whole = await ask(client, tools=tools)
        async with client.chat.completions.stream(model="default", messages=USER, tools=tools) as stream:
            return whole.choices[0], (await stream.get_final_completion()).choices[0]

    whole, streamed = talk(session, scenario)
    assert streamed.message.content == whole.message.content == "Well <b>."
    assert streamed.finish_reason == whole.finish_reason == "tool_calls"
    assert [call.function.arguments for call in streamed.message.tool_calls] == ['{"a": 1}', "{}"]


@pytest.mark.parametrize("stream", [False, True])
def test_text_ends_before_a_stop_string(talk, session, engine, store, stream):
    engine.replies = ["one two END and more"]

    async def scenario(client):
        if not stream:
            return (await ask(client, stop=["END", "never"])).choices[0].message.content
        chunks = await collect(ask(client, stop="END", stream=True))
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    assert talk(session, scenario) == "one two "
    assert store.interactions[0].output_ids == engine.log[0].ids  # the sampled tokens all stay in the record
    assert "END" in engine.log[0].request.sampling.stop


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_those_of_every_sampled_token(talk, session, engine, stream):
    engine.replies = ["añ"]

    async def scenario(client):
        if not stream:
            return (await ask(client, logprobs=True, top_logprobs=0)).choices[0].logprobs.content
        chunks = await collect(ask(client, logprobs=True, stream=True))
        return [item for chunk in chunks if chunk.choices[0].logprobs for item in chunk.choices[0].logprobs.content]

    content = talk(session, scenario)
    assert [item.logprob for item in content] == list(engine.log[0].logprobs)
    assert content[0].token == "a"
    assert content[0].bytes == [97]
    assert content[1].bytes is None  # half of ñ has no text of its own
    assert content[-1].token == "<|im_end|>"


def test_a_reply_cut_by_its_length_says_so(talk, session, engine, store):
    engine.replies = ["a long story"]
    reply = talk(session, lambda client: ask(client, max_completion_tokens=3, max_tokens=50))
    assert reply.choices[0].finish_reason == "length"
    assert reply.choices[0].message.content == "a l"
    assert store.interactions[0].finish_reason is FinishReason.LENGTH


def test_a_reply_cut_behind_a_whole_call_has_the_call_and_says_so(talk, session, engine, tools, call_text):
    call = call_text("add", '{"a": 1}')
    engine.replies = [call + " and so on"]
    (choice,) = talk(session, lambda client: ask(client, tools=tools, max_tokens=len(call))).choices
    assert choice.finish_reason == "length"
    assert [item.function.arguments for item in choice.message.tool_calls] == ['{"a": 1}']


def test_a_later_turns_usage_counts_its_whole_prompt(talk, session, engine, store):
    async def scenario(client):
        first = (await ask(client)).choices[0].message
        return await ask(client, messages=[*USER, {"role": "assistant", "content": first.content}, *USER])

    usage = talk(session, scenario).usage
    assert usage.prompt_tokens == len(engine.log[1].request.prompt_ids) > len(store.interactions[1].prompt_ids)


def test_token_ids_are_given_on_request_only(talk, session, engine):
    async def scenario(client):
        asked = {"extra_body": {"return_token_ids": True}}
        chunks = await collect(ask(client, stream=True, **asked))
        return await ask(client), await ask(client, **asked), chunks

    plain, full, chunks = talk(session, scenario)
    assert plain.choices[0].model_extra == {}
    assert tuple(full.choices[0].model_extra["token_ids"]) == engine.log[2].ids
    assert tuple(full.model_extra["prompt_token_ids"]) == engine.log[2].request.prompt_ids
    streamed = [token for chunk in chunks for token in chunk.choices[0].model_extra["token_ids"]]
    assert tuple(streamed) == engine.log[0].ids
    assert tuple(chunks[-1].model_extra["prompt_token_ids"]) == engine.log[0].request.prompt_ids


def test_models_lists_the_policy(talk, session):
    async def scenario(client):
        return [model.id async for model in client.models.list()]

    assert talk(session, scenario) == ["default"]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"n": 129}, "n"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"logprobs": 1}, "logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [1]}, "messages[0]"),
        ({"messages": {"role": "user"}}, "messages"),
        ({"tools": {}}, "tools"),
        ({"messages": [{"role": "user", "content": {}}]}, "messages[0].content"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": 1}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "tool", "content": "", "tool_call_id": 1}]}, "messages[0].tool_call_id"),
        ({"stream": True, "stream_options": 1}, "stream_options."),
    ],
)
def test_bad_requests_name_the_field(gateway, session, send, engine, store, options, param):
    reply = send(session, {"model": "default", "messages": USER, **options})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param.rstrip(".") in error["message"]
    assert engine.log == store.interactions == []


def test_errors_arrive_as_the_sdks_own(talk, session, engine):
    async def scenario(client):
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(client, n=0)
        return caught.value

    error = talk(session, scenario)
    assert (error.param, error.code, error.type) == ("n", "invalid_type", "invalid_request_error")


def test_an_engine_error_reaches_the_agent_and_stores_nothing(talk, session, engine, store):
    engine.replies = [EngineError("weights are gone"), EngineError("weights are gone")]

    async def scenario(client):
        with pytest.raises(openai.InternalServerError, match="weights are gone"):
            await ask(client)
        with pytest.raises(openai.APIError, match="weights are gone"):
            await collect(ask(client, stream=True))

    talk(session, scenario)
    assert store.interactions == []


def test_an_unforeseen_failure_tells_no_details(talk, session, engine, caplog):
    engine.replies = [ValueError("secret")]

    async def scenario(client):
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(client)
        return str(caught.value)

    assert "secret" not in talk(session, scenario)
    assert "ValueError: secret" in caplog.text


def test_a_full_disk_reaches_the_agent(talk, session, store):
    store.error = "run.db: disk full; free some space"

    async def scenario(client):
        with pytest.raises(openai.InternalServerError, match="disk full"):
            await ask(client)

    talk(session, scenario)


def test_the_sync_client_over_a_socket(gateway, session, engine):
    engine.replies = ["yes", "streamed"]
    with OpenAI(base_url=session.base_url + "/v1", api_key="dummy", max_retries=0) as client:
        assert ask(client).choices[0].message.content == "yes"
        pieces = [chunk.choices[0].delta.content or "" for chunk in ask(client, stream=True)]
    assert "".join(pieces) == "streamed"


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/chat/completions", "/v1/v1/chat/completions"])
def test_every_spelling_of_the_route_works(session, send, path):
    body = {"messages": USER}
    assert send(session, body, path=path).json()["model"] == "default"
    headers = {"authorization": f"Bearer {session.api_key}"}
    assert send(session, body, path=path, token=False, headers=headers).status_code == 200


def test_content_parts_and_developer_messages(session, send, engine, chat):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    send(session, {"messages": [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]})
    expected = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "ab"}]
    assert chat.decode(engine.log[0].request.prompt_ids) == chat.render(expected)


def test_arguments_may_come_as_an_object(session, send, engine, chat):
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    send(session, {"messages": [*USER, {"role": "assistant", "tool_calls": [call]}]})
    assert '{"name": "add", "arguments": {"a":1}}' in chat.decode(engine.log[0].request.prompt_ids)


def test_unknown_fields_are_ignored_and_recorded(session, send, store):
    reply = send(session, {"messages": USER, "presence_penalty": 0.5, "metadata": None, "seed": 3})
    assert reply.status_code == 200
    assert store.interactions[0].requested == {"presence_penalty": 0.5, "seed": 3}


def test_invalid_json_is_refused(session, send):
    for body in (b"{", b"[1]", b'"a"', b"[" * 5000, b'{"messages": "\xff"}'):
        reply = send(session, body)
        assert reply.status_code == 400
        assert reply.json()["error"]["type"] == "invalid_request_error"


def test_an_overlong_body_is_refused_on_both_ways(talk, session):
    async def scenario(client):
        with pytest.raises(openai.APIStatusError) as caught:
            await ask(client, messages=[{"role": "user", "content": "x" * (17 * 2**20)}])
        return caught.value

    assert talk(session, scenario).status_code == 413


def test_a_prompt_over_the_context_is_refused_in_openais_words(talk, session, engine):
    engine.context_length = 10

    async def scenario(client):
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(client)
        return caught.value

    assert talk(session, scenario).code == "context_length_exceeded"


def test_unknown_routes_and_methods(gateway, session, send):
    for path in ("/", "/v1/embeddings", "/v1/chat"):
        assert send(session, {}, path=path).status_code == 404
    assert send(session, {}, path="/v1/models").status_code == 405
    assert send(session, {}, method="GET").status_code == 405
    assert send(session, b"", method="GET", path="/health", token=False).json() == {"status": "ok"}


def test_many_calls_at_once_stay_apart(talk, gateway, open_session, session, store):
    others = [open_session(gateway) for _ in range(8)]

    async def scenario(client):
        clients = [client.with_options(base_url=other.base_url, api_key=other.api_key) for other in others]
        asked = [ask(one, messages=[{"role": "user", "content": str(i)}]) for i, one in enumerate(clients * 3)]
        return await asyncio.gather(*asked)

    replies = talk(session, scenario)
    assert len({reply.id for reply in replies}) == 24
    by_record = {}
    for interaction in store.interactions:
        by_record.setdefault(interaction.record_id, []).append(interaction)
    assert {record: sorted(one.seq for one in mine) for record, mine in by_record.items()} == {
        other.record_id: [0, 1, 2] for other in others
    }
    assert json.dumps(sorted(m["content"] for one in store.interactions for m in one.messages))
    for index, other in enumerate(others):
        asked = {one.messages[0]["content"] for one in by_record[other.record_id]}
        assert asked == {str(index), str(index + 8), str(index + 16)}
    assert gateway.calls == 24
