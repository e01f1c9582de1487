"""The real OpenAI SDK speaks the Responses API with the gateway."""

import json

import openai
import pytest
from pydantic import BaseModel

from agentrl_core.api.reasoning import THINK
from agentrl_core.chat import Chat
from agentrl_core.errors import RequestError
from agentrl_core.gateway.dialects.responses import OpenAIResponses
from agentrl_core.types import FinishReason, Grammar

TOOL = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALLS = '<tool_call>\n{"name": "add", "arguments": {"a":1}}\n</tool_call>'


@pytest.fixture(scope="module")
def chat(model_dir):
    return Chat.from_directory(model_dir, reasoning=THINK)


def ask(client, **options):
    return client.responses.create(**{"model": "default", "input": "what is 1 + 2?", **options})


async def collect(stream):
    return [event async for event in await stream]


def test_a_response_is_what_was_sampled_and_stored(talk, session, engine, store, chat):
    engine.replies = ["three é 晴"]
    response = talk(session, lambda client: ask(client, instructions="Be brief.", metadata={"a": "b"}))
    (interaction,), (logged,) = store.interactions, engine.log
    assert response.output_text == "three é 晴"
    assert response.id == interaction.id
    assert response.id.startswith("resp_")
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    (item,) = response.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    assert item.id == response.id.replace("resp_", "msg_")
    assert (item.content[0].annotations, item.content[0].logprobs) == ([], [])
    assert response.instructions == "Be brief."
    assert response.metadata == {"a": "b"}
    assert response.usage.input_tokens == len(logged.request.prompt_ids)
    assert response.usage.output_tokens == len(logged.ids)
    assert response.usage.total_tokens == len(logged.request.prompt_ids) + len(logged.ids)
    assert response.usage.input_tokens_details.cached_tokens == interaction.cached_tokens
    assert response.usage.output_tokens_details.reasoning_tokens == 0
    assert (interaction.output_ids, interaction.logprobs, interaction.api) == (
        logged.ids,
        logged.logprobs,
        "responses",
    )
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "what is 1 + 2?"}
    assert chat.decode(logged.request.prompt_ids) == chat.render([system, user])
    assert interaction.requested["metadata"] == {"a": "b"}


def test_a_response_has_all_that_openais_type_requires(send, session):
    response = send(session, {"input": "hi"}, path="/v1/responses").json()
    openai.types.responses.Response.model_validate(response, strict=False)
    assert response["tools"] == []
    assert (response["tool_choice"], response["parallel_tool_calls"]) == ("auto", True)
    assert response["text"] == {"format": {"type": "text"}}
    assert (response["truncation"], response["temperature"], response["top_p"]) == ("disabled", 1.0, 1.0)


def test_a_response_has_penalties_which_open_responses_requires(send, session):
    response = send(session, {"input": "hi", "presence_penalty": 0.5}, path="/v1/responses").json()
    assert (response["presence_penalty"], response["frequency_penalty"]) == (0.0, 0.0)  # none is ever applied


def test_the_first_events_have_the_sampling_of_the_reply(talk, session):
    events = talk(session, lambda client: collect(ask(client, temperature=0.2, stream=True)))
    told = [event.response for event in events if hasattr(event, "response")]
    assert [(response.temperature, response.top_p) for response in told] == [(1.0, 1.0)] * 3


@pytest.mark.parametrize("text", [{"verbosity": "low"}, {"verbosity": "low", "format": None}])
def test_options_of_the_text_are_repeated_with_its_format(send, session, text):
    response = send(session, {"input": "hi", "text": text}, path="/v1/responses").json()
    assert response["text"] == {"format": {"type": "text"}, "verbosity": "low"}


def test_what_a_response_repeats_is_true(talk, session):
    options = {
        "temperature": 0.2,
        "max_output_tokens": 50,
        "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "add"},
        "parallel_tool_calls": False,
        "truncation": "auto",
        "reasoning": {"effort": "low"},
        "store": False,
        "user": "me",
    }
    response = talk(session, lambda client: ask(client, **options))
    assert response.temperature == 1.0  # the policy's
    assert response.max_output_tokens == 50
    assert response.tools[0].name == "add"
    assert response.tool_choice.name == "add"
    assert response.parallel_tool_calls is False
    assert (response.truncation, response.reasoning.effort, response.user) == ("auto", "low", "me")


def test_thoughts_a_message_and_parallel_calls_are_items(talk, session, engine, store):
    engine.replies = [f"<think>\nhm\n</think>\n\nAdding.\n{CALLS}\n{CALLS}"]
    response = talk(session, lambda client: ask(client, tools=[TOOL]))
    reasoning, message, first, second = response.output
    stem = response.id.removeprefix("resp_")
    assert [item.id for item in response.output] == [f"rs_{stem}", f"msg_{stem}", f"fc_{stem}_0", f"fc_{stem}_1"]
    assert (reasoning.type, reasoning.summary, reasoning.content[0].text) == ("reasoning", [], "hm")
    assert message.content[0].text == "Adding."
    assert (first.name, first.arguments, first.status) == ("add", '{"a":1}', "completed")
    assert [first.call_id, second.call_id] == [call["id"] for call in store.interactions[0].output["tool_calls"]]
    assert response.usage.output_tokens_details.reasoning_tokens > 0
    assert store.interactions[0].tools == (
        {"type": "function", "function": {"name": "add", "parameters": TOOL["parameters"]}},
    )


def test_only_calls_have_no_message(talk, session, engine):
    engine.replies = [CALLS]
    assert [item.type for item in talk(session, lambda client: ask(client, tools=[TOOL])).output] == ["function_call"]


def test_a_malformed_call_is_shown_and_told(talk, session, engine, store):
    engine.replies = ["<tool_call>{oops</tool_call>"]
    response = talk(session, lambda client: ask(client, tools=[TOOL]))
    assert response.output_text == "<tool_call>{oops</tool_call>"
    assert len(response.model_extra["tool_call_errors"]) == store.interactions[0].tool_errors == 1


@pytest.mark.parametrize("text", ["a long story", "<think>a long thought"])
def test_a_reply_cut_by_its_length_is_incomplete(talk, session, engine, store, text):
    engine.replies = [text] * 2

    async def scenario(client):
        events = await collect(ask(client, max_output_tokens=9, stream=True))
        return await ask(client, max_output_tokens=9), events

    whole, events = talk(session, scenario)
    for response in whole, events[-1].response:
        assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert [item.status for item in response.output] == ["incomplete"]
    assert events[-1].type == "response.incomplete"
    assert events[-2].item == events[-1].response.output[0]
    assert store.interactions[0].finish_reason is FinishReason.LENGTH


def test_a_stream_has_openais_events_in_openais_order(talk, session, engine):
    engine.replies = [f"<think>ab</think>cd\n{CALLS}"]
    events = talk(session, lambda client: collect(ask(client, tools=[TOOL], stream=True)))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type.removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    indexes = [event.output_index for event in events if hasattr(event, "output_index")]
    assert indexes == sorted(indexes)
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == events[-1].response.output
    assert events[0].response.output == []


def test_the_sdks_stream_accumulates_to_the_response_that_is_not_streamed(talk, session, engine, store):
    text = f"<think>\nhm\n</think>\n\ngrüße 晴.\n{CALLS}{CALLS}"
    engine.replies = [text, text]

    async def scenario(client):
        whole = await ask(client, tools=[TOOL])
        async with client.responses.stream(model="default", input="what is 1 + 2?", tools=[TOOL]) as stream:
            snapshots = [event.snapshot async for event in stream if event.type == "response.output_text.delta"]
            return whole, await stream.get_final_response(), snapshots

    whole, streamed, snapshots = talk(session, scenario)
    assert snapshots[-1] == "grüße 晴."
    assert len(snapshots) == len("grüße 晴.") - 1  # a token each; a blank waits for what comes behind it
    assert streamed.id == store.interactions[1].id
    plain = [response.model_dump(mode="json") for response in (whole, streamed)]
    unlike = {"id", "call_id", "created_at", "completed_at", "parsed_arguments", "parsed"}

    def alike(value):
        if isinstance(value, dict):
            return {key: alike(item) for key, item in value.items() if key not in unlike}
        return [alike(item) for item in value] if isinstance(value, list) else value

    assert alike(plain[0]) == alike(plain[1])


def test_an_empty_reply_is_an_empty_message(talk, session, engine):
    engine.replies = ["", ""]

    async def scenario(client):
        return await ask(client), await collect(ask(client, stream=True))

    whole, events = talk(session, scenario)
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == events[-1].response.output
    for response in whole, events[-1].response:
        assert [item.type for item in response.output] == ["message"]
        assert response.output_text == ""


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_those_of_every_sampled_token(talk, session, engine, stream):
    engine.replies = ["añ"]
    options = {"include": ["message.output_text.logprobs"], "stream": stream}

    async def scenario(client):
        if not stream:
            return await ask(client, **options)
        return (await collect(ask(client, **options)))[-1].response

    content = talk(session, scenario).output[0].content[0].logprobs
    assert [item.logprob for item in content] == list(engine.log[0].logprobs)
    assert (content[0].token, content[0].bytes) == ("a", [97])
    assert content[-1].token == "<|im_end|>"


def test_streamed_deltas_carry_their_logprobs(talk, session, engine):
    engine.replies = ["ab"]
    events = talk(session, lambda client: collect(ask(client, include=["message.output_text.logprobs"], stream=True)))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [[item.token for item in event.logprobs] for event in deltas] == [["a"], ["b"]]


def test_parse_makes_an_object_of_the_text(talk, session, engine):
    class Sum(BaseModel):
        value: int

    engine.replies = ['{"value": 3}']

    async def scenario(client):
        return await client.responses.parse(model="default", input="hi", text_format=Sum)

    assert talk(session, scenario).output_parsed == Sum(value=3)


def test_a_failure_in_mid_stream_is_raised(talk, session, engine):
    engine.replies = [RequestError(503, "generation_aborted", "gone")]

    async def scenario(client):
        with pytest.raises(openai.APIError, match="gone") as raised:
            await collect(ask(client, stream=True))
        return raised.value

    assert talk(session, scenario).code == "generation_aborted"


def test_a_response_can_be_retrieved(talk, session, engine):
    engine.replies = [f"<think>hm</think>Adding.{CALLS}", "ok"]
    options = {"tools": [TOOL], "tool_choice": "required", "instructions": "Be brief.", "metadata": {"a": "b"}}

    async def scenario(client):
        first = await ask(client, **options)
        second = await ask(client, previous_response_id=first.id)
        items = [item async for item in client.responses.input_items.list(second.id)]
        kept = [await client.responses.retrieve(response.id) for response in (first, second)]
        return [first, second], kept, items

    made, kept, items = talk(session, scenario)
    assert kept == made
    assert [item.type for item in items] == ["message", "function_call", "message", "message"]
    assert [item.content[0].text for item in items if item.type == "message"] == [
        "what is 1 + 2?",
        "Adding.",
        "what is 1 + 2?",
    ]


def test_a_response_can_be_retrieved_as_a_stream(talk, session, engine):
    engine.replies = [f"<think>hm</think>Adding.{CALLS}"]

    async def scenario(client):
        made = await ask(client, tools=[TOOL])
        return made, await collect(client.responses.retrieve(made.id, stream=True))

    made, events = talk(session, scenario)
    assert events[-1].response == made
    assert [event.item for event in events if event.type == "response.output_item.done"] == made.output
    assert [event.sequence_number for event in events] == list(range(len(events)))


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_retrieved_with_its_logprobs(talk, session, engine, stream):
    include = ["message.output_text.logprobs"]

    async def scenario(client):
        made = await ask(client, include=include)
        found = await client.responses.retrieve(made.id, include=include, stream=stream)
        return made, [event async for event in found][-1].response if stream else found

    made, found = talk(session, scenario)
    assert found == made
    assert [item.logprob for item in found.output[0].content[0].logprobs] == list(engine.log[0].logprobs)


@pytest.mark.parametrize(("query", "param"), [("stream=yes", "stream"), ("starting_after=3", "starting_after")])
def test_a_wrong_query_is_refused(send, session, query, param):
    made = send(session, {"input": "hi"}, path="/v1/responses").json()
    reply = send(session, None, path=f"/v1/responses/{made['id']}?{query}", method="GET")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_results_of_tools_are_listed_with_a_status(send, session):
    items = [
        {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "3"},
    ]
    made = send(session, {"input": items}, path="/v1/responses").json()
    listed = send(session, None, path=f"/v1/responses/{made['id']}/input_items", method="GET").json()["data"]
    assert (listed[0]["type"], listed[0]["status"]) == ("function_call_output", "completed")


def test_responses_of_other_sessions_are_not_found(talk, session, gateway, open_session):
    other = open_session(gateway)
    response = talk(other, ask)

    async def refusals(client, stem):
        with pytest.raises(openai.NotFoundError) as retrieved:
            await client.responses.retrieve(f"resp_{stem}")
        with pytest.raises(openai.BadRequestError) as continued:
            await ask(client, previous_response_id=f"resp_{stem}")
        with pytest.raises(openai.BadRequestError) as referenced:
            await ask(client, input=[{"type": "item_reference", "id": f"msg_{stem}"}])
        found = [raised.value for raised in (retrieved, continued, referenced)]
        assert [error.code for error in found] == ["not_found", "previous_response_not_found", "item_not_found"]
        return [str(error).replace(stem, "…") for error in found]

    async def scenario(client):
        return [await refusals(client, stem) for stem in (response.id.removeprefix("resp_"), "0" * 32)]

    foreign, unknown = talk(session, scenario)
    assert foreign == unknown


def test_a_response_is_not_deleted(talk, session):
    async def scenario(client):
        response = await ask(client)
        with pytest.raises(openai.APIStatusError, match="part of its episode's record") as raised:
            await client.responses.delete(response.id)
        return raised.value.status_code

    assert talk(session, scenario) == 405


def test_a_retried_stream_tells_the_same_reply(send, session, engine):
    engine.replies = [f"<think>hm</think>Adding.{CALLS}"]
    body = {"input": "hi", "tools": [TOOL], "stream": True}
    told = [send(session, body, path="/v1/responses", headers={"idempotency-key": "k1"}).text for _ in range(2)]
    finals = [json.loads(text.rpartition("data: ")[2]) for text in told]
    assert finals[0]["response"] == finals[1]["response"]
    assert len(engine.log) == 1


def test_token_ids_are_given_on_request(send, session, engine):
    response = send(session, {"input": "hi", "return_token_ids": True}, path="/v1/responses").json()
    assert tuple(response["token_ids"]) == engine.log[0].ids
    assert tuple(response["prompt_token_ids"]) == engine.log[0].request.prompt_ids


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"role": "wizard", "content": "hi"}]}, "input[0].role"),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call_output", "output": "3"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": 1}]}, "input[0].arguments"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "custom"}]}, "tools[0]"),
        ({"tools": [{"type": "custom", "name": "c", "format": {"type": "grammar"}}]}, "tools[0].format"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "tools[0]"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "file_search"}]}]}, "tools[0].tools[0]"),
        ({"tools": [{**TOOL, "name": "n__add"}, {"type": "namespace", "name": "n", "tools": [TOOL]}]}, "tools"),
        ({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f"}]}, "input[0].input"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "f"}]}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"text": "json"}, "text.format"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"truncation": "middle"}, "truncation"),
        ({"metadata": "a"}, "metadata"),
        ({"reasoning": "low"}, "reasoning"),
        ({"include": "logprobs"}, "include"),
        ({"instructions": ["a"]}, "instructions"),
        ({"stream": 1}, "stream"),
    ],
)
def test_bad_requests_name_the_field(send, session, store, options, param):
    response = send(session, {"input": "hi", **options}, path="/v1/responses")
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert store.interactions == []


def test_a_context_that_is_too_long_is_refused_as_openai_does(talk, session, engine):
    engine.context_length = 10

    async def scenario(client):
        with pytest.raises(openai.BadRequestError) as raised:
            await ask(client)
        return raised.value

    error = talk(session, scenario)
    assert (error.code, error.param) == ("context_length_exceeded", "input")


@pytest.mark.parametrize(
    ("value", "grammar"),
    [
        ({"format": {"type": "text"}}, None),
        ({"verbosity": "low"}, None),
        ({"format": {"type": "json_object"}}, Grammar(kind="json_object")),
        (
            {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
            Grammar(kind="json_schema", value='{"type":"object"}'),
        ),
    ],
)
def test_the_format_of_the_text_is_a_grammar(value, grammar):
    assert OpenAIResponses().parse({"input": "hi", "text": value}, {}).grammar == grammar


def test_allowed_tools_and_effort_are_understood():
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "add"}]}
    body = {"input": "hi", "tools": [TOOL], "tool_choice": choice, "reasoning": {"effort": "none"}}
    request = OpenAIResponses().parse(body, {"x-agentrl-trainable": "false"})
    assert (request.tool_choice.mode, request.tool_choice.names) == ("required", ("add",))
    assert request.template_options == {"enable_thinking": False}
    assert request.trainable is False


def test_a_tool_that_is_not_strict_is_the_same_in_every_api(send, session, engine):
    function = {"name": "add", "parameters": {"type": "object", "properties": {}}}
    chat = {"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function", "function": function}]}
    said = send(session, chat).json()["choices"][0]["message"]["content"]
    items = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "?"},
    ]
    body = {"input": items, "tools": [{"type": "function", **function, "strict": False}]}
    reply = send(session, body, path="/v1/responses").json()
    assert reply["tools"][0]["strict"] is False
    one, two = engine.log
    assert two.request.prompt_ids[: len(one.request.prompt_ids) + len(one.ids)] == one.request.prompt_ids + one.ids
