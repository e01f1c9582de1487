"""Other providers are asked in OpenAI's chat completions, and their failures come through as what they are."""

import asyncio
import json
import threading

import pytest

from agentrl_core.config.schema import GatewayConfig, UpstreamConfig
from agentrl_core.errors import RequestError
from agentrl_core.gateway.dialects.openai_chat import OpenAIChat
from agentrl_core.gateway.exchange import ChatRequest, ToolChoice, Usage
from agentrl_core.gateway.upstreams import UpstreamPiece, Upstreams
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
        self.replies, self.seen, self.connections = [], [], 0
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
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _talk(self, reader, writer):
        self.connections += 1
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
        return Upstreams({"judge": config}, sleep=sleep).find("judge")

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
            usage=Usage(prompt_tokens=11, output_tokens=5, cached_tokens=8, reasoning_tokens=2),
        ),
    )


def test_the_request_is_translated(provider, complete):
    provider.replies = [answer({"content": "ok"})]
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
        UpstreamPiece(usage=Usage(prompt_tokens=11, output_tokens=5, cached_tokens=8, reasoning_tokens=2)),
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
    assert stream() == [
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
    with pytest.raises(RequestError, match=r"said nothing for 0\.1 s") as refused:
        complete(timeout_s=0.1)
    assert refused.value.status == 504
    assert len(provider.seen) == 1


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
