"""Whatever JSON a client sends, a dialect takes it or refuses it by name: nothing else happens."""

import asyncio
import copy
import functools
import json
import math

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl_core.errors import RequestError
from agentrl_core.gateway.call_types import ChatRequest
from agentrl_core.gateway.dialects.anthropic_messages import AnthropicMessages
from agentrl_core.gateway.dialects.openai_chat import OpenAIChat
from agentrl_core.gateway.dialects.openai_completions import Completions
from agentrl_core.gateway.dialects.responses import OpenAIResponses

FUNCTION = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {}}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
IMAGE = "data:image/png;base64,iVBORw0KGgo="

CHAT = {
    "model": "default",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "hello"}], "name": "me"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "call_1", "content": "2"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": {"type": "function", "function": {"name": "add"}},
    "parallel_tool_calls": True,
    "response_format": SCHEMA,
    "chat_template_kwargs": {"enable_thinking": False},
    "temperature": 1.0,
    "top_p": 0.5,
    "top_k": 5,
    "max_tokens": 5,
    "max_completion_tokens": 5,
    "n": 2,
    "stop": ["a", "b"],
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "top_logprobs": 2,
    "return_token_ids": True,
    "seed": 3,
    "metadata": {"a": [1, {"b": None}]},
}
COMPLETION = {
    "model": "default",
    "prompt": ["hello", [1, 2, 3]],
    "max_tokens": 5,
    "n": 1,
    "best_of": 1,
    "echo": False,
    "suffix": "",
    "logprobs": 2,
    "stop": "x",
    "temperature": 0.5,
    "stream_options": {"include_usage": False},
    "return_token_ids": True,
    "user": "me",
}
RESPONSE = {
    "model": "default",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "2"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "2"}]},
    ],
    "tools": [{"type": "function", **FUNCTION, "strict": True}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]},
    "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
    "reasoning": {"effort": "none"},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 2,
    "max_output_tokens": 5,
    "metadata": {"a": "b"},
    "truncation": "auto",
    "store": True,
    "user": "me",
    "temperature": 0.5,
}
MESSAGE = {
    "model": "default",
    "max_tokens": 5,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "text", "text": "so"},
                {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "2"}]},
    ],
    "tools": [{"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "tool", "name": "add", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    "temperature": 0.5,
    "top_k": 5,
    "stop_sequences": ["a"],
    "metadata": {"user_id": "me"},
}
DIALECTS = {
    "/chat/completions": (OpenAIChat(), CHAT),
    "/completions": (Completions(), COMPLETION),
    "/responses": (OpenAIResponses(), RESPONSE),
    "/messages": (AnthropicMessages(), MESSAGE),
}

numbers = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.sampled_from([0, -1, 2**31, 2**53 + 1, 1e308, -1e308, 5e-324, 0.1])
)
# As orjson reads them: text of a request has no lone surrogates, and numbers are finite.
texts = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.sampled_from(["", "\0", "\u2028"]))
plain = st.one_of(st.none(), st.booleans(), numbers, texts)
anything = st.recursive(
    plain,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)


def places(value, path=()):
    """Yield the paths of all values inside of JSON."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def changed(value, path, replace):
    if not path:
        return replace(value)
    value = copy.copy(value)
    value[path[0]] = changed(value[path[0]], path[1:], replace)
    return value


@st.composite
def mutated(draw, body):
    """A valid body in which a few values, at any depth, have become something else."""
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(body))[1:]))
        there = functools.reduce(lambda value, key: value[key], path, body)
        replacement = draw(
            st.one_of(
                anything,
                st.just([there]),
                st.just({"a": there}),
                st.just(str(there)),
                st.just([there] * 3),
                st.just(dict.fromkeys(there) if isinstance(there, dict) else None),
                st.integers(1, 90).map(lambda depth: functools.reduce(lambda inner, _: [inner], range(depth), 1)),
            )
        )
        body = changed(body, path, lambda _, new=replacement: new)
    return body


@pytest.mark.parametrize("route", DIALECTS)
@given(data=st.data())
def test_any_json_is_a_request_or_is_refused(route, data):
    dialect, valid = DIALECTS[route]
    fields = st.dictionaries(st.sampled_from(sorted(valid)), anything, max_size=5)
    body = data.draw(st.one_of(anything, fields, mutated(valid)))
    headers = data.draw(st.dictionaries(st.sampled_from(["x-agentrl-trainable", "return_token_ids"]), texts))
    try:
        request = dialect.parse(body, headers)
    except RequestError as error:
        refusal = error
    else:
        assert isinstance(request, ChatRequest)
        return
    assert refusal.status == 400
    orjson.dumps(dialect.error(refusal))


@pytest.mark.parametrize("route", DIALECTS)
def test_the_bodies_that_are_mutated_are_valid(route):
    dialect, valid = DIALECTS[route]
    assert isinstance(dialect.parse(valid, {}), ChatRequest)


def check_shape(route, error):
    if route == "/messages":
        assert error["type"] == "error"
        assert error["error"]["type"] != "api_error"
    else:
        assert set(error["error"]) == {"message", "type", "param", "code"}
    assert error["error"]["message"]


def check_reply(route, body, reply):
    assert reply.status_code in {200, 400, 404}, (body, reply.text)
    if reply.status_code != 200:
        return check_shape(route, reply.json())
    if reply.headers["content-type"].startswith("text/event-stream"):
        assert '"server_error"' not in reply.text, body
        assert '"api_error"' not in reply.text, body
    else:
        json.loads(reply.content)
    return None


@pytest.mark.parametrize("route", DIALECTS)
@pytest.mark.parametrize("examples", [25, pytest.param(400, marks=pytest.mark.slow)])
def test_a_mutated_request_is_answered_or_refused_in_the_apis_own_shape(online, route, examples):
    """Through the whole gateway, into the store."""
    rest = online()
    key = asyncio.run(rest.start())["api_key"]
    valid = DIALECTS[route][1]

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(body=mutated(valid), stream=st.booleans())
    def send(body, stream):
        body = {**body, "stream": stream}
        check_reply(route, body, asyncio.run(rest.post("/v1" + route, body, key=key)))

    send()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nul",
        b"[1, 2",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": 1e999}',
        b'"\\ud800"',
        b'{"\\udfff": 1}',
        b'"\xff"',
        b"\xef\xbb\xbf{}",
        b"\x1f\x8b\x08\x00garbage",
        "{}".encode("utf-16"),
        b"[" * 10_000,
        b"[" * 200 + b"]" * 200,
        b'{"a":' * 101 + b"1" + b"}" * 101,
        b"1" * 5000,
        b'{"messages": ' + b"9" * 400 + b"}",
    ],
)
@pytest.mark.parametrize("route", DIALECTS)
def test_what_is_no_json_is_refused(send, session, route, body):
    reply = send(session, body, path="/v1" + route, headers={"content-encoding": "gzip"})
    assert reply.status_code == 400
    check_shape(route, reply.json())


@pytest.mark.parametrize("route", DIALECTS)
def test_a_number_that_is_not_finite_is_none(route):
    dialect, valid = DIALECTS[route]
    for number in (math.nan, math.inf, -math.inf):
        with pytest.raises(RequestError):
            dialect.parse({**valid, "temperature": number}, {})
