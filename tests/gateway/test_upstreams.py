"""Other providers are asked in OpenAI's chat completions, and their failures come through as what they are."""

import asyncio
import gzip
import json
import threading

import attrs
import pytest

from agentrl_core.config.sampling_sections import GatewayConfig, UpstreamConfig
from agentrl_core.errors import RequestError
from agentrl_core.gateway.call_types import ChatRequest, TokenUsage, ToolChoice
from agentrl_core.gateway.dialects.openai_chat import OpenAIChat
from agentrl_core.gateway.upstream_chat import UpstreamPiece
from agentrl_core.gateway.upstreams import Upstreams
from agentrl_core.types import Grammar

KEY = "sk-very-secret-0123456789"
HELLO = ChatRequest(messages=({"role": "user", "content": "hello"},), model="judge")
TOOLS = tuple({"type": "function", "function": {"name": name, "parameters": {}}} for name in ("add", "look"))
USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 8},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


def call(call_id, name, arguments):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(message, *, reason="stop", **more):
    choice = {"index": 0, "message": {"role": "assistant"} | message, "finish_reason": reason} | more
    return wire({"id": "c", "object": "chat.completion", "choices": [choice], "usage": USAGE})


def choices(*messages, indices=None, usage=USAGE):
    """A reply with a choice for each message; an index of None is left out."""
    found = []
    for index, message in zip(indices or range(len(messages)), messages, strict=True):
        numbered = {} if index is None else {"index": index}
        found.append(numbered | {"message": {"role": "assistant"} | message, "finish_reason": "stop"})
    return wire({"choices": found, "usage": usage})


def wire(body, *, status=200, **headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"content-type": "application/json", "content-length": len(content)}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} Whatever\r\n{head}\r\n".encode() + content


def events(*bodies, pieces=1, done=True):
    """A chunked event stream, cut into chunks that respect no event's borders."""
    text = "".join(f"data: {json.dumps(body)}\n\n" for body in bodies) + ("data: [DONE]\n\n" if done else "")
    data = text.encode()
    size = -(-len(data) // pieces)
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        + framed
        + b"0\r\n\r\n"
    )


def delta(fields, *, reason=None, index=0, **more):
    return {"choices": [{"index": index, "delta": fields, "finish_reason": reason} | more]}


class Provider:
    """Answers with prepared bytes: None closes the connection, `SILENT` says nothing more."""

    SILENT = object()

    def __init__(self):
        self.replies, self.seen, self.connections, self._writers = [], [], 0, []
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._talk, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def close(self):
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self):
        self._server.close()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:  # one that accepts may begin another that talks
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _talk(self, reader, writer):
        self.connections += 1
        self._writers.append(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.strip().split("\r\n")
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                self.seen.append((first, headers, body))
                reply = self.replies.pop(0)
                if reply is None:
                    return
                if reply is self.SILENT:
                    await asyncio.Event().wait()
                writer.write(reply)
                await writer.drain()
                if b"content-length" not in reply and b"chunked" not in reply:
                    return
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.transport.abort()


@pytest.fixture
def provider():
    provider = Provider()
    yield provider
    provider.close()


@pytest.fixture
def waits():
    return []


@pytest.fixture
def upstream(provider, waits):
    async def sleep(seconds):
        waits.append(seconds)

    def make(**options):
        config = UpstreamConfig(**{"url": provider.url, "model": "big-1"} | options)
        return Upstreams({"judge": config}, sleep=sleep, uniform=lambda _, most: most).find("judge")

    return make


@pytest.fixture
def complete(upstream):
    return lambda request=HELLO, **options: asyncio.run(upstream(**options).complete(request))


@pytest.fixture
def stream(upstream):
    async def read(request, options):
        return [piece async for piece in upstream(**options).stream(request)]

    return lambda request=HELLO, **options: asyncio.run(read(request, options))


def test_only_configured_models_go_elsewhere(provider):
    upstreams = Upstreams(GatewayConfig(upstreams={"judge": UpstreamConfig(url=provider.url)}).upstreams)
    assert upstreams.find("default") is None
    assert upstreams.find("gpt-4") is None
    assert upstreams.find("judge").name == "judge"
    assert upstreams.names == ("judge",)


def test_the_policy_cannot_be_sent_elsewhere():
    with pytest.raises(ValueError, match="default"):
        GatewayConfig(upstreams={"default": UpstreamConfig(url="http://host/v1")})


@pytest.mark.parametrize(
    "url",
    [
        "host/v1",
        "ftp://host",
        "http://user:word@host",
        "http://host/v1?key=x",
        "http://",
        "http://host/v1/chat/completions",
    ],
)
def test_a_url_that_holds_more_or_less_than_a_place_is_refused(url):
    with pytest.raises(ValueError, match="url"):
        UpstreamConfig(url=url)


def test_a_whole_reply_is_read(provider, complete):
    message = {"content": "hi", "reasoning_content": "hm", "tool_calls": [call("c1", "add", '{"a": 1}')]}
    entries = [{"token": "hi", "logprob": -0.5, "bytes": None, "top_logprobs": []}]
    provider.replies = [answer(message, reason="tool_calls", logprobs={"content": entries})]
    assert complete() == (
        UpstreamPiece(
            content="hi",
            reasoning="hm",
            tool_calls=(call("c1", "add", '{"a": 1}'),),
            finish_reason="tool_calls",
            logprobs=tuple(entries),
            usage=TokenUsage(prompt_tokens=11, output_tokens=5, cached_tokens=8, reasoning_tokens=2),
        ),
    )


def test_the_request_is_translated(provider, complete):
    provider.replies = [choices({"content": "ok"}, {"content": "fine"})]
    earlier = {
        "role": "assistant",
        "content": "",
        "reasoning_content": "secret thoughts",
        "tool_calls": [call("c", "add", "{}")],
    }
    result = {"role": "tool", "content": "3", "tool_call_id": "c"}
    complete(
        ChatRequest(
            messages=(*HELLO.messages, earlier, result),
            tools=TOOLS,
            tool_choice=ToolChoice(mode="required", names=("add",)),
            parallel_tool_calls=False,
            grammar=Grammar(kind="json_schema", value='{"type": "object"}'),
            temperature=0.0,
            top_p=0.9,
            max_tokens=7,
            stop=("END",),
            n=2,
            logprobs=True,
            top_logprobs=3,
            ignored={"seed": 5, "user": "me"},
        )
    )
    first, headers, body = provider.seen[0]
    assert first == "POST /v1/chat/completions HTTP/1.1"
    assert "authorization" not in headers
    assert body == {
        "model": "big-1",
        "messages": [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": None, "tool_calls": [call("c", "add", "{}")]},
            result,
        ],
        "stream": False,
        "tools": [TOOLS[0]],
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "reply", "schema": {"type": "object"}, "strict": True},
        },
        "temperature": 0.0,
        "top_p": 0.9,
        "max_tokens": 7,
        "stop": ["END"],
        "n": 2,
        "logprobs": True,
        "top_logprobs": 3,
        "seed": 5,
        "user": "me",
    }


def test_what_the_agent_left_out_is_left_to_the_provider(provider, complete):
    provider.replies = [answer({"content": "ok"})]
    complete()
    assert provider.seen[0][2] == {"model": "big-1", "messages": list(HELLO.messages), "stream": False}


def test_unknown_fields_of_other_apis_stay_here(provider, complete):
    provider.replies = [answer({"content": "ok"})]
    complete(ChatRequest(api="messages", messages=HELLO.messages, ignored={"metadata": {}}))
    assert "metadata" not in provider.seen[0][2]


def test_a_field_that_the_trace_has_cut_is_not_passed_on(provider, complete):
    request = OpenAIChat().parse({"messages": list(HELLO.messages), "custom": "x" * 5000}, {})
    with pytest.raises(RequestError, match="custom is too large") as refused:
        complete(request)
    assert refused.value.status == 400
    assert not provider.seen


@pytest.mark.parametrize(
    "request_",
    [ChatRequest(prompts=("once",)), ChatRequest(messages=HELLO.messages, grammar=Grammar(kind="regex", value="a"))],
)
def test_what_chat_completions_cannot_say_is_refused(complete, request_):
    with pytest.raises(RequestError) as refused:
        complete(request_)
    assert refused.value.status == 400


def test_a_stream_is_read_whatever_its_chunks(provider, stream):
    bodies = [
        delta({"role": "assistant", "content": ""}),
        delta({"reasoning_content": "h"}),
        delta({"content": "né"}),
        delta(
            {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "add", "arguments": ""}}]}
        ),
        delta({"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]}),
        delta({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}),
        delta({"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "look", "arguments": "{}"}}]}),
        delta({}, reason="tool_calls"),
        {"choices": [], "usage": USAGE},
    ]
    expected = [
        UpstreamPiece(reasoning="h"),
        UpstreamPiece(content="né"),
        UpstreamPiece(tool_calls=(call("c1", "add", '{"a": 1}'),)),
        UpstreamPiece(tool_calls=(call("c2", "look", "{}"),), finish_reason="tool_calls"),
        UpstreamPiece(usage=TokenUsage(prompt_tokens=11, output_tokens=5, cached_tokens=8, reasoning_tokens=2)),
    ]
    for pieces in (1, 7, 60):
        provider.replies = [events(*bodies, pieces=pieces)]
        assert stream() == expected
    body = provider.seen[0][2]
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}


def test_the_choices_of_a_stream_are_told_apart(provider, stream):
    fragment = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "add", "arguments": "{}"}}]}
    bodies = [
        delta({"content": "b"}, index=1),
        delta(fragment),
        delta({}, reason="stop", index=1),
        delta({}, reason="stop"),
    ]
    provider.replies = [events(*bodies)]
    assert stream(attrs.evolve(HELLO, n=2)) == [
        UpstreamPiece(choice=1, content="b"),
        UpstreamPiece(choice=1, finish_reason="stop"),
        UpstreamPiece(tool_calls=(call("c", "add", "{}"),), finish_reason="tool_calls"),
    ]


def test_the_key_is_read_when_it_is_needed_and_sent(provider, complete, monkeypatch):
    with pytest.raises(RequestError, match="JUDGE_KEY is empty or not set") as refused:
        complete(api_key_env="JUDGE_KEY")
    assert refused.value.status == 502
    monkeypatch.setenv("JUDGE_KEY", KEY)
    provider.replies = [answer({"content": "ok"})]
    complete(api_key_env="JUDGE_KEY")
    assert provider.seen[0][1]["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 500])
def test_no_error_shows_the_key(provider, complete, monkeypatch, status):
    monkeypatch.setenv("JUDGE_KEY", KEY)
    provider.replies = [wire({"error": {"message": f"bad key {KEY}"}}, status=status)] * 3
    with pytest.raises(RequestError) as refused:
        complete(api_key_env="JUDGE_KEY")
    assert KEY not in str(refused.value)
    assert KEY[:12] not in str(refused.value)
    assert refused.value.status == {401: 502, 403: 502, 500: 502}.get(status, status)


def test_a_refused_key_is_told_from_the_agents_own(provider, complete, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", KEY)
    provider.replies = [wire({"error": {"message": "Incorrect API key provided"}}, status=401)]
    with pytest.raises(RequestError, match="refused the key in JUDGE_KEY") as refused:
        complete(api_key_env="JUDGE_KEY")
    assert refused.value.code == "upstream_unauthorized"


def test_a_busy_provider_is_asked_again(provider, complete, waits):
    busy = {"error": {"message": "slow down"}}
    provider.replies = [wire(busy, status=429, retry_after=3), wire(busy, status=503), answer({"content": "ok"})]
    (piece,) = complete()
    assert piece.content == "ok"
    assert waits == [3.0, 1.0]


def test_too_many_requests_stay_that(provider, complete, waits):
    provider.replies = [wire({"error": {"message": "slow down"}}, status=429, retry_after=60)]
    with pytest.raises(RequestError, match="slow down") as refused:
        complete()
    assert (refused.value.status, refused.value.retry_after_s) == (429, 60.0)
    assert waits == []


def test_silence_is_a_timeout(provider, complete):
    provider.replies = [Provider.SILENT]
    with pytest.raises(RequestError, match=r"sent nothing for 0\.1 s") as refused:
        complete(timeout_s=0.1, max_retries=2)
    assert refused.value.status == 504
    provider.replies = [answer({"content": "ok"})]
    complete()
    assert provider.connections == 2  # a provider that was silent once is not asked again for the same


def test_a_connection_that_ends_before_a_reply_is_made_anew(provider, complete):
    provider.replies = [None, answer({"content": "ok"})]
    assert complete()[0].content == "ok"


@pytest.mark.parametrize(
    "reply",
    [
        wire(b"<html>"),
        wire({"choices": [{}]}),
        wire([]),
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{",
        wire({}, status=302, location="http://elsewhere"),
    ],
)
def test_what_is_no_chat_completion_is_a_bad_gateway(provider, complete, reply):
    provider.replies = [reply] * 3
    with pytest.raises(RequestError, match="provider of model 'judge'") as refused:
        complete(timeout_s=0.3, max_retries=0)
    assert refused.value.status in {502, 504}


@pytest.mark.parametrize(
    "reply",
    [
        events(delta({"content": "a"}), {"error": {"message": "out of memory"}}),
        events(delta({"content": "a"})),
        events(delta({"content": "a"}), done=False)[:-9],
        events([]),
    ],
)
def test_a_stream_that_breaks_off_is_a_bad_gateway(provider, stream, reply):
    provider.replies = [reply]
    with pytest.raises(RequestError) as refused:
        stream(timeout_s=0.3)
    assert refused.value.status in {502, 504}


def test_leaving_a_stream_ends_its_connection(provider, upstream):
    provider.replies = [
        events(delta({"content": "a"}), delta({"content": "b"}), done=False)[:-5],
        answer({"content": "ok"}),
    ]

    async def leave():
        judge = upstream()
        pieces = judge.stream(HELLO)
        assert (await anext(pieces)).content == "a"
        await pieces.aclose()
        return await judge.complete(HELLO)

    assert asyncio.run(leave())[0].content == "ok"
    assert provider.connections == 2


def test_connections_are_kept_per_event_loop(provider, upstream):
    provider.replies = [answer({"content": "ok"})] * 4
    judge = upstream()

    async def twice():
        await judge.complete(HELLO)
        await judge.complete(HELLO)

    asyncio.run(twice())
    asyncio.run(twice())
    assert provider.connections == 2


def test_another_gateway_is_a_provider_like_any(gateway, session, engine, call_text, tools):
    """Both ends by the same protocol, over a real socket, whole and streamed."""
    url = f"{session.base_url}/v1"
    judge = Upstreams({"judge": UpstreamConfig(url=url, model="default")}).find("judge")
    request = ChatRequest(messages=HELLO.messages, tools=tuple(tools), model="judge")
    engine.replies = ["so:\n" + call_text("add", '{"a": 1}')] * 2

    async def both():
        return await judge.complete(request), [piece async for piece in judge.stream(request)]

    (whole,), pieces = asyncio.run(both())
    calls = [made for piece in pieces for made in piece.tool_calls]
    for made in (*whole.tool_calls, *calls):
        assert made["function"]["name"] == "add"
        assert json.loads(made["function"]["arguments"]) == {"a": 1}
    assert len(whole.tool_calls) == len(calls) == 1
    assert "".join(piece.content for piece in pieces) == whole.content
    assert whole.usage == pieces[-1].usage
    assert whole.usage.output_tokens == len(engine.log[0].ids)


def test_an_agent_is_told_how_long_to_wait(send, session, engine):
    engine.replies = [RequestError(429, "rate_limit_exceeded", "busy", retry_after_s=60.0)]
    response = send(session, {"messages": list(HELLO.messages)})
    assert (response.status_code, response.headers["retry-after"]) == (429, "60")


# Several replies to one request.

TWO = attrs.evolve(HELLO, n=2)
THREE = attrs.evolve(HELLO, n=3)


def said(pieces):
    """Texts by choice."""
    texts = {}
    for piece in pieces:
        texts[piece.choice] = texts.get(piece.choice, "") + piece.content
    return texts


def ended(*texts, first=0):
    """The events of a stream in which choices come whole."""
    return [delta({"content": text}, reason="stop", index=index) for index, text in enumerate(texts, start=first)]


def test_a_provider_that_ignores_n_is_asked_for_the_replies_that_are_missing(provider, complete):
    provider.replies = [answer({"content": text}) for text in "abc"]
    pieces = complete(attrs.evolve(THREE, ignored={"seed": 5}))
    assert said(pieces) == {0: "a", 1: "b", 2: "c"}
    assert [piece.finish_reason for piece in pieces] == ["stop"] * 3
    assert [(body.get("n"), body["seed"]) for _, _, body in provider.seen] == [(3, 5), (2, 6), (None, 7)]
    assert pieces[-1].usage == TokenUsage(prompt_tokens=33, output_tokens=15, cached_tokens=24, reasoning_tokens=6)


def test_a_provider_that_streams_one_reply_is_asked_for_the_others(provider, stream):
    usage = {"choices": [], "usage": USAGE}
    provider.replies = [events(*ended("a", "b"), usage), events(*ended("c"), usage)]
    pieces = stream(THREE)
    assert said(pieces) == {0: "a", 1: "b", 2: "c"}
    assert [body.get("n") for _, _, body in provider.seen] == [3, None]
    assert pieces[-1].usage == TokenUsage(prompt_tokens=22, output_tokens=10, cached_tokens=16, reasoning_tokens=4)


def test_a_usage_that_grows_with_the_stream_counts_once(provider, stream):
    growing = [delta({"content": "a"}) | {"usage": {"completion_tokens": count}} for count in (1, 2, 3)]
    provider.replies = [events(*growing, delta({}, reason="stop"))]
    assert [piece.usage.output_tokens for piece in stream() if piece.usage] == [1, 2, 3]


@pytest.mark.parametrize("indices", [(1, 0), (None, None), (0, 1)])
def test_choices_come_in_any_order_and_may_be_unnumbered(provider, complete, indices):
    provider.replies = [choices({"content": "a"}, {"content": "b"}, indices=indices)]
    pieces = complete(TWO)
    assert said(pieces) == ({0: "b", 1: "a"} if indices == (1, 0) else {0: "a", 1: "b"})
    assert [piece.choice for piece in pieces] == [0, 1]
    assert pieces[-1].usage is not None


BAD_INDICES = [(0, 0), (0, 2), (0, -1), (0, "1"), (0, True), (0, 1.0), (0, 10**30), (0, 1, 2)]


@pytest.mark.parametrize("indices", BAD_INDICES)
def test_choices_that_nobody_asked_for_are_a_bad_gateway(provider, complete, stream, indices):
    provider.replies = [choices(*[{"content": "x"} for _ in indices], indices=indices)]
    with pytest.raises(RequestError, match=r"sent (a )?choice") as refused:
        complete(TWO)
    assert refused.value.status == 502
    if indices == (0, 0):
        return  # in a stream that is one choice in two pieces
    provider.replies = [events(*[delta({"content": "x"}, index=index) for index in indices])]
    with pytest.raises(RequestError, match="sent a choice with the index") as refused:
        stream(TWO)
    assert refused.value.status == 502


@pytest.mark.parametrize(
    "bodies",
    [
        ended("b", first=1),
        [*ended("a"), delta({"content": "cut"}, index=1)],
        [delta({"content": "cut"}), *ended("b", first=1)],
    ],
)
def test_a_stream_that_lacks_a_choice_or_its_end_is_a_bad_gateway(provider, stream, bodies):
    provider.replies = [events(*bodies)]
    with pytest.raises(RequestError, match="ended its stream after choices") as refused:
        stream(TWO)
    assert refused.value.status == 502


# What providers should not send.


def broken(**fields):
    return {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"} | fields]}


@pytest.mark.parametrize(
    "body",
    [
        {"choices": []},
        {"choices": {}},
        {"choices": 7},
        {"choices": None},
        "text",
        broken(message={"content": 7}),
        broken(message={"content": {"text": "a"}}),
        broken(message={"content": [7]}),
        broken(message={"content": [{"text": 7}]}),
        broken(message=[1]),
        broken(message=[]),
        broken(message=0),
        broken(message={"tool_calls": {"a": 1}}),
        broken(message={"tool_calls": [{"id": "c", "function": {"name": 7}}]}),
        broken(message={"tool_calls": [{"id": 7, "function": {"name": "add"}}]}),
        broken(message={"tool_calls": [{"id": "c", "function": {}}]}),
        broken(finish_reason="error"),
        broken(finish_reason={}),
        broken(logprobs={"content": "abc"}),
        broken(logprobs=[1]),
        broken() | {"usage": [1]},
    ],
)
def test_values_of_wrong_types_are_a_bad_gateway_not_a_blank_reply(provider, complete, stream, body):
    provider.replies = [wire(body)]
    with pytest.raises(RequestError, match="provider of model 'judge'") as refused:
        complete()
    assert refused.value.status == 502
    if isinstance(body, dict) and isinstance(body["choices"], list):
        events_of = [{**body, "choices": [choice | {"delta": choice["message"]} for choice in body["choices"]]}]
        provider.replies = [events(*events_of)]
        with pytest.raises(RequestError, match="provider of model 'judge'") as refused:
            stream()
        assert refused.value.status == 502


@pytest.mark.parametrize("count", ["11", -1, 2.5, True, None, 10**15, 10**300, {}])
def test_a_number_of_tokens_that_is_none_counts_as_0(provider, complete, count):
    provider.replies = [wire(broken() | {"usage": {"prompt_tokens": count, "completion_tokens": 3}})]
    (piece,) = complete()
    assert piece.usage.prompt_tokens == (count if count == 10**15 else 0)
    assert piece.usage.output_tokens == 3


@pytest.mark.parametrize("message", [{}, {"role": "assistant"}, {"text": "elsewhere"}])
def test_a_message_that_says_nothing_is_no_blank_reply(provider, complete, message):
    provider.replies = [wire(broken(message=message))]
    with pytest.raises(RequestError, match="a message without content, refusal, reasoning or tool calls") as refused:
        complete()
    assert refused.value.status == 502


def test_a_packed_reply_is_named_and_never_unpacked(provider, complete):
    bomb = gzip.compress(bytes(1 << 20))
    provider.replies = [wire(bomb, content_encoding="gzip")]
    with pytest.raises(RequestError, match="in the encoding gzip, which it was asked not to use") as refused:
        complete()
    assert refused.value.status == 502


def test_a_reply_that_is_too_large_is_a_bad_gateway(provider, complete):
    provider.replies = [wire(b'{"choices": "' + b"x" * (16 << 20) + b'"}')]
    with pytest.raises(RequestError, match=r"sent too much: .* more than 16777216 bytes") as refused:
        complete()
    assert refused.value.status == 502


def test_a_stream_whose_event_does_not_end_is_a_bad_gateway(provider, stream):
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    provider.replies = [head + b"data: " + b"x" * (17 << 20)]
    with pytest.raises(RequestError, match="sent too much: an event of its stream") as refused:
        stream()
    assert refused.value.status == 502


@pytest.mark.parametrize(
    ("status", "told"),
    [
        *[(301, 502), (408, 504), (409, 409), (418, 502), (429, 429), (500, 502), (501, 502), (502, 502)],
        *[(503, 503), (504, 504), (520, 502), (522, 504), (529, 503), (599, 502)],
    ],
)
def test_a_failure_keeps_the_status_that_it_deserves(provider, complete, stream, status, told):
    for ask in (complete, stream):
        provider.replies = [wire({"error": {"message": "sorry"}}, status=status, retry_after=7)]
        with pytest.raises(RequestError) as refused:
            ask(max_retries=0)
        assert refused.value.status == told
        assert refused.value.retry_after_s == (7.0 if told in {429, 503} else None)


@pytest.mark.parametrize("value", ["soon", "nan", "inf", "-5", "", "1e400", "Fri, 99 Foo 2099 00:00:00 GMT"])
def test_a_time_to_wait_that_is_none_is_not_passed_on(provider, complete, value):
    provider.replies = [wire({}, status=429, retry_after=value)]
    with pytest.raises(RequestError) as refused:
        complete(max_retries=0)
    assert refused.value.retry_after_s in {None, 0.0}


def test_a_provider_that_comes_back_is_asked_until_it_answers(provider, complete, waits):
    provider.replies = [None, wire({}, status=502), wire({}, status=503), answer({"content": "ok"})]
    assert complete(max_retries=3)[0].content == "ok"
    assert waits == [0.5, 1.0, 2.0]
