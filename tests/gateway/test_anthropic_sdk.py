"""The real Anthropic SDK talks to the gateway, in process and over a socket."""

import asyncio

import anthropic
import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic
from pydantic import BaseModel

from agentrl_core.api.reasoning import REASONING_FORMATS
from agentrl_core.chat import Chat
from agentrl_core.errors import EngineError
from agentrl_core.http.tls_context import ssl_context
from agentrl_core.types import FinishReason

USER = [{"role": "user", "content": "what is 1 + 2?"}]
PATH = "/v1/messages"


def ask(client, **options):
    return client.messages.create(**{"model": "default", "max_tokens": 500, "messages": USER, **options})


def streamed(client, **options):
    return client.messages.stream(**{"model": "default", "max_tokens": 500, "messages": USER, **options})


async def final(client, **options):
    async with streamed(client, **options) as stream:
        return await stream.get_final_message()


@pytest.fixture(scope="module")
def chat(model_dir):
    return Chat.from_directory(model_dir, reasoning=REASONING_FORMATS["think"])


@pytest.fixture
def tools():
    properties = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    return [{"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": properties}}]


@pytest.fixture(params=["in process", "socket"])
def talk(request, gateway):
    """Run `scenario(client)` with an Anthropic client of a session, by either way into the gateway."""

    def run(session, scenario, **options):
        async def talking():
            over_socket = httpx2.AsyncClient(verify=ssl_context(), timeout=60)
            http_client = gateway.http_client if request.param == "in process" else over_socket
            options.setdefault("max_retries", 0)
            async with AsyncAnthropic(
                base_url=session.base_url, api_key=session.api_key, http_client=http_client, **options
            ) as client:
                return await scenario(client)

        return asyncio.run(talking())

    return run


def test_the_tool_runner_sends_the_whole_conversation(gateway, session, talk, engine, store, call_text):
    @anthropic.beta_async_tool
    async def add(a: int, b: int) -> str:
        """Add."""
        return str(a + b)

    async def scenario(client):
        runner = client.beta.messages.tool_runner(model="default", max_tokens=500, messages=USER, tools=[add])
        return await runner.until_done()

    engine.replies = [call_text("add", '{"a": 1, "b": 2}'), "Three."]
    message = talk(session, scenario)
    assert message.content[0].text == "Three."
    first, second = store.interactions
    assert (second.parent, second.messages[0]["content"], len(second.tools)) == (first.id, "3", 1)


def test_a_conversation_is_not_held_for_the_client(session, talk):
    async def scenario(client):
        return await client.beta.messages.create(
            model="default", max_tokens=9, messages=USER, extra_body={"thread": {"type": "create"}}
        )

    with pytest.raises(anthropic.BadRequestError, match="send all messages of the conversation") as caught:
        talk(session, scenario)
    assert caught.value.body["error"]["details"]["error_code"] == "thread_unsupported_request"


def test_a_reply_is_what_was_sampled_and_stored(talk, session, engine, store, chat):
    engine.replies = ["three é 晴"]
    reply = talk(session, lambda client: ask(client, system="Be brief.", metadata={"user_id": "u"}))
    (interaction,), (logged,) = store.interactions, engine.log
    assert [block.to_dict() for block in reply.content] == [{"type": "text", "text": "three é 晴"}]
    assert (reply.stop_reason, reply.stop_sequence, reply.model) == ("end_turn", None, "default")
    assert reply.id == interaction.id
    assert reply.id.startswith("msg_")
    assert reply.usage.input_tokens == len(logged.request.prompt_ids) == len(interaction.prompt_ids)
    assert reply.usage.output_tokens == len(logged.ids)
    assert (interaction.output_ids, interaction.logprobs) == (logged.ids, logged.logprobs)
    expected = [{"role": "system", "content": "Be brief."}, *USER]
    assert chat.decode(logged.request.prompt_ids) == chat.render(expected)
    assert interaction.messages == tuple(expected)
    assert interaction.output == {"role": "assistant", "content": "three é 晴"}
    assert (interaction.api, interaction.trainable) == ("messages", True)
    assert interaction.requested == {"metadata": {"user_id": "u"}}


def test_calls_follow_thoughts_and_text(talk, session, engine, store, tools, call_text):
    engine.replies = [
        "<think>\nhm\n</think>\n\nAdding.\n" + call_text("add", '{"a":1.50}') + "\n" + call_text("add", "{}")
    ]
    reply = talk(session, lambda client: ask(client, tools=tools))
    thought, text, first, second = reply.content
    assert (thought.type, thought.thinking) == ("thinking", "hm")
    assert thought.signature
    assert (text.type, text.text) == ("text", "Adding.")
    assert (first.type, first.name, first.input, second.input) == ("tool_use", "add", {"a": 1.5}, {})
    assert [first.id, second.id] == [call["id"] for call in store.interactions[0].output["tool_calls"]]
    assert first.id != second.id
    assert reply.stop_reason == "tool_use"
    assert reply.usage.output_tokens_details.thinking_tokens > 0
    function = {"name": "add", "description": "Adds.", "parameters": tools[0]["input_schema"]}
    assert store.interactions[0].tools == ({"type": "function", "function": function},)


def test_a_malformed_call_is_shown_to_the_agent_and_counted(talk, session, engine, store, tools):
    engine.replies = ["<tool_call>{oops</tool_call>"] * 2

    async def scenario(client):
        events = [event async for event in await ask(client, tools=tools, stream=True)]
        return await ask(client, tools=tools), events[-2].delta

    reply, ending = talk(session, scenario)
    assert reply.content[0].text == "<tool_call>{oops</tool_call>"
    assert reply.stop_reason == "end_turn"
    assert reply.model_extra["tool_call_errors"] == ending.model_extra["tool_call_errors"]
    assert len(reply.model_extra["tool_call_errors"]) == 1
    assert [one.tool_errors for one in store.interactions] == [1, 1]


def test_numbers_of_calls_keep_their_digits(talk, session, engine, tools, call_text):
    engine.replies = [call_text("add", '{"a": 123456789012345678901234567890}')] * 2

    async def scenario(client):
        return [await ask(client, tools=tools), await final(client, tools=tools)]

    for reply in talk(session, scenario):
        assert reply.content[0].input == {"a": 123456789012345678901234567890}


@pytest.mark.parametrize(
    "text",
    [
        "grüße 晴 now",
        "",
        "  \n",
        "<think>only thoughts</think>",
        "<think>cut off",
        "<think>a</think>b<think>c",
        "Well <b>.\nCALL\nCALL",
        "CALL",
        "CALL and more CALL and on",
        "<think>hm</think>CALL",
        "<tool_call>nonsense",
        "x CALL <tool_call>{</tool_call>",
    ],
)
def test_a_stream_adds_up_to_the_whole_reply(talk, session, engine, tools, call_text, text):
    engine.replies = [text.replace("CALL", call_text("add", '{"a": 1, "b": {"c": [1.0, "é"]}}'))] * 2

    async def scenario(client):
        return await ask(client, tools=tools), await final(client, tools=tools)

    whole, added_up = (reply.to_dict() for reply in talk(session, scenario))
    for reply in (whole, added_up):
        del reply["id"]
        reply.pop("tool_call_errors", None)  # the SDK does not add that up
        for block in reply["content"]:
            block.pop("id", None)
            assert block.pop("parsed_output", None) is None
    if text == "<think>a</think>b<think>c":  # a thought that comes later is a block of its own
        assert [block.pop("thinking", None) for block in added_up["content"]] == ["a", None, "\n\nc"]
        assert [block.pop("thinking", None) for block in whole["content"]] == ["a\n\nc", None]
        assert added_up["content"][:2] == whole["content"]
        return
    assert added_up == whole


def test_a_stream_comes_token_by_token_in_anthropics_order(talk, session, engine, tools, call_text):
    engine.replies = ["<think>so</think>grüße 晴\n" + call_text("add", "{}")]

    async def scenario(client):
        return [event async for event in await ask(client, tools=tools, stream=True)]

    events = talk(session, scenario)
    kinds = [event.type if event.type != "content_block_delta" else event.delta.type for event in events]
    assert kinds == [
        "message_start",
        *["content_block_start", "thinking_delta", "thinking_delta", "signature_delta", "content_block_stop"],
        *["content_block_start", *["text_delta"] * 6, "content_block_stop"],
        *["content_block_start", "input_json_delta", "content_block_stop"],
        "message_delta",
        "message_stop",
    ]
    assert [event.index for event in events if event.type == "content_block_stop"] == [0, 1, 2]
    assert events[0].message.usage.input_tokens == len(engine.log[0].request.prompt_ids)
    assert events[0].message.stop_reason is None
    assert events[-2].delta.stop_reason == "tool_use"
    assert events[-2].usage.output_tokens == len(engine.log[0].ids)


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequences_are_named(talk, session, engine, store, stream):
    engine.replies = ["one two END and more"]
    call = final if stream else ask
    reply = talk(session, lambda client: call(client, stop_sequences=["never", "END"]))
    assert reply.content[0].text == "one two "
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", "END")
    assert store.interactions[0].output_ids == engine.log[0].ids


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_cut_by_its_length_says_so(talk, session, engine, store, stream):
    engine.replies = ["a long story"]
    reply = talk(session, lambda client: (final if stream else ask)(client, max_tokens=3))
    assert reply.stop_reason == "max_tokens"
    assert reply.content[0].text == "a l"
    assert store.interactions[0].finish_reason is FinishReason.LENGTH


def test_counting_gives_what_the_engine_then_sees_and_leaves_no_trace(talk, session, engine, store, tools, call_text):
    engine.replies = ["<think>x</think>" + call_text("add", '{"a":1}'), "done"]

    async def scenario(client):
        request = {"messages": USER, "tools": tools, "system": "Add.", "model": "default"}
        counts = [await client.messages.count_tokens(**request)]
        reply = await ask(client, **request)
        result = {"type": "tool_result", "tool_use_id": reply.content[1].id, "content": "1"}
        after = [*USER, {"role": "assistant", "content": reply.content}, {"role": "user", "content": [result]}]
        request["messages"] = after
        counts.append(await client.messages.count_tokens(**request))
        counts.append(await client.beta.messages.count_tokens(**request))
        await ask(client, **request)
        return [count.input_tokens for count in counts]

    first, *seconds = talk(session, scenario)
    assert first == len(engine.log[0].request.prompt_ids)
    assert seconds == [len(engine.log[1].request.prompt_ids)] * 2
    assert len(engine.log) == len(store.interactions) == 2
    assert session.num_calls == 2


def test_structured_outputs_are_parsed_by_the_sdk(talk, session, engine):
    class Sum(BaseModel):
        value: int

    engine.replies = ['{"value": 3}']

    async def scenario(client):
        return await client.messages.parse(model="default", max_tokens=50, messages=USER, output_format=Sum)

    assert talk(session, scenario).parsed_output == Sum(value=3)


def test_the_sync_client_over_a_socket(session, engine):
    engine.replies = ["yes", "streamed"]
    with Anthropic(base_url=session.base_url, api_key="dummy", max_retries=0) as client:
        assert ask(client).content[0].text == "yes"
        with streamed(client) as stream:
            assert "".join(stream.text_stream) == "streamed"


@pytest.mark.parametrize("headers", [{"x-api-key": "KEY"}, {"authorization": "Bearer KEY"}])
@pytest.mark.parametrize("path", ["/messages", "/v1/messages", "/v1/v1/messages", "/v1/messages/count_tokens"])
def test_either_header_opens_every_spelling_of_the_route(session, send, path, headers):
    headers = {name: value.replace("KEY", session.api_key) for name, value in headers.items()}
    headers |= {"anthropic-version": "2023-06-01", "anthropic-beta": "unheard-of-2031-01-01"}
    body = {"model": "default", "max_tokens": 50, "messages": USER}
    assert send(session, body, path=path, token=False, headers=headers).status_code == 200


def test_models_are_listed_in_anthropics_words(talk, session):
    async def scenario(client):
        return [(model.id, model.type, model.display_name) async for model in client.models.list()]

    assert talk(session, scenario) == [("default", "model", "default")]


def test_a_call_may_be_kept_out_of_training(talk, session, store):
    talk(session, lambda client: ask(client, extra_headers={"x-agentrl-trainable": "false"}))
    assert store.interactions[0].trainable is False


def test_token_ids_are_given_on_request_only(talk, session, engine):
    async def scenario(client):
        asked = {"extra_body": {"return_token_ids": True}}
        events = [event async for event in await ask(client, stream=True, **asked)]
        return await ask(client), await ask(client, **asked), events[-2].delta

    plain, full, ending = talk(session, scenario)
    assert plain.model_extra == {}
    assert tuple(full.model_extra["token_ids"]) == engine.log[2].ids
    assert tuple(full.model_extra["prompt_token_ids"]) == engine.log[2].request.prompt_ids
    assert tuple(ending.model_extra["token_ids"]) == engine.log[0].ids


# --- failures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [1]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "'document'"),
        ({"messages": [{"role": "user", "content": [{"type": "search_result"}]}]}, "'search_result'"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "'tool_use'"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].source"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]},
            "files are not supported",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://a"}}]}
                ]
            },
            "fetches no images",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "content[0].tool_use_id"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image"}]}]}, "'image'"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]}, "content[0].name"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "input": []}]}]},
            "content[0].input",
        ),
        ({"messages": [*USER, {"role": "assistant", "content": "The answer is"}]}, "prefill"),
        ({"system": [{"type": "image"}]}, "'image'"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "all"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "auto", "name": 1}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "f"}, "tools": [{"name": "g", "input_schema": {}}]}, "'f'"),
        ({"thinking": {"type": "sometimes"}}, "thinking"),
        ({"output_config": {"format": {"type": "json_object"}}}, "output_config.format"),
        ({"output_format": {}}, "output_format"),
        ({"temperature": 1.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
    ],
)
def test_bad_requests_name_the_field(session, send, engine, store, options, where):
    reply = send(session, {"model": "default", "max_tokens": 9, "messages": USER, **options}, path=PATH)
    assert reply.status_code == 400
    body = reply.json()
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert where in body["error"]["message"]
    assert engine.log == store.interactions == []


def test_errors_arrive_as_the_sdks_own(talk, gateway, open_session, session, engine):
    other, ended = open_session(gateway), open_session(gateway)
    asyncio.run(gateway.close_session(ended))
    big = [{"role": "user", "content": "x" * (17 * 2**20)}]

    async def caught(call):
        with pytest.raises(anthropic.APIStatusError) as error:
            await call
        return type(error.value), error.value.status_code, error.value.type, error.value.error_code

    async def scenario(client):
        root = session.base_url.partition("/s/")[0]
        found = [
            await caught(ask(client, max_tokens=0)),
            await caught(ask(client.with_options(base_url=root, api_key="sk-unknown"))),
            await caught(ask(client.with_options(api_key=other.api_key))),
            await caught(client.messages.batches.list()),
            await caught(ask(client.with_options(base_url=ended.base_url, api_key="x"))),
            await caught(ask(client, messages=big)),
        ]
        engine.replies = [EngineError("weights are gone")]
        return [*found, await caught(ask(client))]

    assert talk(session, scenario) == [
        (anthropic.BadRequestError, 400, "invalid_request_error", "invalid_type"),
        (anthropic.AuthenticationError, 401, "authentication_error", "invalid_api_key"),
        (anthropic.PermissionDeniedError, 403, "permission_error", "wrong_session"),
        (anthropic.NotFoundError, 404, "not_found_error", "unknown_url"),
        (anthropic.APIStatusError, 410, "invalid_request_error", "session_ended"),
        (anthropic.ContentTooLargeError, 413, "request_too_large", "request_too_large"),
        (anthropic.InternalServerError, 500, "api_error", "EngineError"),
    ]


def test_an_aborted_generation_is_an_overload(talk, session, engine):
    async def scenario(client):
        await engine.pause()
        asked = asyncio.ensure_future(ask(client))
        assert await asyncio.to_thread(engine.begun[0].wait, 5)
        await engine.abort(next(iter(session.running)))
        with pytest.raises(anthropic.ServiceUnavailableError) as caught:
            await asked
        return caught.value

    assert talk(session, scenario).type == "overloaded_error"


def test_a_prompt_over_the_context_is_refused_in_anthropics_words(talk, session, engine, chat):
    engine.context_length = 10
    length = len(chat.prompt_ids(USER))

    async def scenario(client):
        with pytest.raises(anthropic.BadRequestError) as caught:
            await ask(client)
        return caught.value

    error = talk(session, scenario)
    assert error.api_message.startswith(f"prompt is too long: {length} tokens > 9 maximum")
    assert "context_length_exceeded" in error.api_message


def test_a_stream_that_fails_in_the_middle_raises_in_the_sdk(talk, session, engine, store):
    engine.replies = [EngineError("weights are gone")]

    async def scenario(client):
        with pytest.raises(anthropic.APIStatusError) as caught:
            await final(client)
        return caught.value

    error = talk(session, scenario)
    assert (error.type, error.api_message) == ("api_error", "weights are gone")
    assert store.interactions == []


def test_counting_refuses_in_anthropics_shape(session, send):
    url = "/v1/messages/count_tokens"
    assert send(session, {"messages": []}, path=url).json()["error"]["type"] == "invalid_request_error"
    assert send(session, {}, path=url, token=False).json()["error"]["type"] == "authentication_error"
    assert send(session, b"", path=url, method="GET").json()["type"] == "error"
    assert "messages" in session.refusal
    assert send(session, {}, path="/v1/messages/batches").json()["error"]["type"] == "not_found_error"


# --- retries and disconnects -------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_the_sdks_own_retry_gets_the_reply_that_it_missed_by_its_name(session, engine, store, stream, named):
    engine.replies = ["once", "twice"]
    lost = []

    async def lose(response):
        if not lost:
            lost.append(await response.aread())
            raise httpx2.ReadError("the reply was lost on its way", request=response.request)

    async def scenario():
        http_client = httpx2.AsyncClient(verify=ssl_context(), timeout=60, event_hooks={"response": [lose]})
        async with AsyncAnthropic(
            base_url=session.base_url,
            api_key="x",
            http_client=http_client,
            max_retries=2,
            default_headers={"idempotency-key": "k1"} if named else {},
        ) as client:
            return await (final if stream else ask)(client)

    reply = asyncio.run(scenario())
    assert reply.content[0].text == ("once" if named else "twice")
    assert reply.id == store.interactions[-1].id
    assert len(engine.log) == len(store.interactions) == (1 if named else 2)
    assert len(lost) == 1


def test_leaving_a_stream_aborts_its_generation(talk, session, engine, store):
    engine.replies = ["word " * 300]

    async def scenario(client):
        async with streamed(client, max_tokens=2000) as stream:
            async for event in stream:
                if event.type == "text":
                    await engine.pause()
                    break
        await engine.resume()
        assert await asyncio.to_thread(engine.ended[0].wait, 5)

    talk(session, scenario)
    assert engine.log[0].finish_reason is FinishReason.ABORT
    assert store.interactions == []
