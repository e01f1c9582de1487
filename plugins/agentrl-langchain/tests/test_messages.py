import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.exceptions import ModelAPIError
from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.utils import message_chunk_to_message

from agentrl_core.chat.fingerprint import Fingerprint
from agentrl_core.gateway.dialects.openai_messages import parse_messages
from agentrl_langchain.messages import ReplyStream, to_openai, to_replies

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(st.tuples(st.text("abc_", min_size=1), st.dictionaries(TEXT, VALUES, max_size=3)), max_size=3)


PNG = "iVBORw0KGgo="
IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
IMAGES = [
    IMAGE,
    {"type": "image_url", "image_url": IMAGE["image_url"]["url"]},
    {"type": "image", "base64": PNG, "mime_type": "image/png"},
    {"type": "image", "source_type": "base64", "data": PNG, "mime_type": "image/png"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
    {"type": "input_image", "image_url": IMAGE["image_url"]["url"]},
]
"""One image in the shapes of OpenAI, LangChain and Anthropic."""


def openai_call(number, name, arguments):
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def completion(content, calls=(), finish="stop"):
    message = {"role": "assistant", "content": content} | ({"tool_calls": list(calls)} if calls else {})
    return {
        "id": "chatcmpl-1",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": {
            "prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}
        },
    }  # fmt: skip


def events(deltas, finish="stop"):
    frames = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}], "usage": None} for delta in deltas]
    frames.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "usage": None})
    frames.append({"choices": [], "usage": completion("")["usage"]})
    lines = [json.dumps({"id": "chatcmpl-1", "model": "m", **frame}, ensure_ascii=False) for frame in frames]
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()


def reply_of(body):
    [message] = to_replies(body)
    return message


def read_stream(data, size):
    stream = ReplyStream()
    message = None
    for start in range(0, len(data), size):
        for chunk in stream.feed(data[start : start + size]):
            message = chunk if message is None else message + chunk
    stream.close()
    return message_chunk_to_message(message)


@given(content=TEXT | st.none(), calls=CALLS, spaces=st.booleans())
def test_a_reply_that_is_sent_back_is_recognised_as_the_one_that_was_sampled(content, calls, spaces):
    separators = (" , ", " : ") if spaces else (",", ":")
    raw = [
        openai_call(number, name, json.dumps(args, separators=separators)) for number, (name, args) in enumerate(calls)
    ]
    sampled = completion(content, raw)
    question = {"role": "user", "content": "?"}

    def digest(reply):
        fingerprint = Fingerprint(())
        return [fingerprint.add(message) for message in parse_messages([question, reply])]

    assert digest(to_openai(reply_of(sampled))) == digest(sampled["choices"][0]["message"])


@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_a_stream_gives_the_same_message_wherever_it_is_cut(size):
    content = "línea\u2028two\u0085three\x0cfour 😀"
    call = openai_call(0, "add", '{"a": "\u2028", "b": 1}')
    data = events([{"role": "assistant", "content": ""}, {"content": content}, {"tool_calls": [{"index": 0, **call}]}])
    streamed, whole = read_stream(data, size), reply_of(completion(content, [call]))
    assert streamed.content == whole.content == content
    assert streamed.tool_calls == whole.tool_calls == [
        {"name": "add", "args": {"a": "\u2028", "b": 1}, "id": "call_0", "type": "tool_call"}
    ]  # fmt: skip
    assert streamed.id == whole.id == streamed.response_metadata["id"] == whole.response_metadata["id"] == "chatcmpl-1"
    assert streamed.usage_metadata == whole.usage_metadata
    assert streamed.response_metadata["finish_reason"] == "stop"


def test_a_failure_in_the_middle_of_a_stream_is_raised():
    data = b'data: {"error": {"message": "the engine aborted this generation"}}\n\n'
    with pytest.raises(ModelAPIError, match="broke off: the engine aborted this generation"):
        list(ReplyStream().feed(data))


def test_a_stream_without_its_end_is_an_error():
    stream = ReplyStream()
    assert [chunk.content for chunk in stream.feed(events([{"content": "half"}]).removesuffix(b"data: [DONE]\n\n"))]
    with pytest.raises(ModelAPIError, match="without the end mark"):
        stream.close()


def test_a_stream_may_hold_comments():
    stream = ReplyStream()
    assert list(stream.feed(b": ping\n\n" + b"data: [DONE]\n\n")) == []
    stream.close()


@pytest.mark.parametrize("arguments", ['{"a": ', "[1, 2]", "3", '"text"'])
def test_arguments_that_are_no_object_are_an_invalid_call_that_goes_back_as_it_was(arguments):
    good = openai_call(1, "add", '{"a": 1}')
    message = reply_of(completion("", [openai_call(0, "add", arguments), good]))
    assert [call["args"] for call in message.tool_calls] == [{"a": 1}]
    assert [(call["name"], call["args"], call["id"]) for call in message.invalid_tool_calls] == [
        ("add", arguments, "call_0")
    ]
    assert message.invalid_tool_calls[0]["error"]
    assert openai_call(0, "add", arguments) in to_openai(message)["tool_calls"]


def test_thoughts_and_malformed_calls_are_kept_and_thoughts_go_back():
    body = completion("<tool_call>{")
    body["choices"][0]["message"] |= {"reasoning_content": "hm, so", "tool_call_errors": ["not JSON"]}
    whole = reply_of(body)
    said = [{"reasoning_content": "hm, "}, {"reasoning_content": "so"}, {"content": "<tool_call>{"}]
    streamed = read_stream(events([*said, {"tool_call_errors": ["not JSON"]}]), 10**6)
    for message in (whole, streamed):
        assert message.additional_kwargs == {"reasoning_content": "hm, so", "tool_call_errors": ["not JSON"]}
        assert {"type": "reasoning", "reasoning": "hm, so"} in message.content_blocks
        assert to_openai(message) == {
            "role": "assistant", "content": "<tool_call>{", "reasoning_content": "hm, so"
        }  # fmt: skip


def test_usage_and_metadata_are_those_that_agents_read():
    message = reply_of(completion("hi", finish="length"))
    assert message.usage_metadata == {
        "input_tokens": 5, "output_tokens": 2, "total_tokens": 7, "input_token_details": {"cache_read": 4}
    }  # fmt: skip
    assert message.response_metadata == {
        "id": "chatcmpl-1", "model_name": "m", "finish_reason": "length", "logprobs": None,
        "token_usage": completion("")["usage"],
    }  # fmt: skip


def test_of_a_reply_only_its_text_and_calls_go_back():
    blocks = [
        {"type": "reasoning", "reasoning": "hm"},
        {"type": "text", "text": "a"},
        {"type": "tool_call", "name": "add", "args": {"a": 1}, "id": "c"},
        {"type": "text", "text": "b"},
    ]
    calls = [{"name": "add", "args": {"a": 1}, "id": "c"}]
    assert to_openai(AIMessage(content=blocks, tool_calls=calls, name="worker")) == {
        "role": "assistant",
        "content": "ab",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
    }


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (SystemMessage("be"), {"role": "system", "content": "be"}),
        (HumanMessage("hi", name="ann"), {"role": "user", "content": "hi", "name": "ann"}),
        (
            HumanMessage(["a", {"type": "text", "text": "b"}]),
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ),
        (
            HumanMessage(["what?", *IMAGES]),
            {"role": "user", "content": [{"type": "text", "text": "what?"}, *[IMAGE] * 6]},
        ),
        (
            ToolMessage([IMAGES[2]], tool_call_id="c"),
            {"role": "tool", "content": [IMAGE], "tool_call_id": "c"},
        ),
        (
            HumanMessage(["a", {"type": "video", "x": 1}]),
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "video", "x": 1}]},
        ),
        (ToolMessage("3", tool_call_id="c", name="add"), {"role": "tool", "content": "3", "tool_call_id": "c"}),
        (ChatMessage("x", role="developer"), {"role": "developer", "content": "x"}),
    ],
)
def test_messages_are_written_as_openai_takes_them(message, expected):
    assert to_openai(message) == expected


def test_a_message_without_a_role_is_refused_by_name():
    with pytest.raises(ValueError, match="a FunctionMessage cannot be sent to the policy"):
        to_openai(FunctionMessage(content="3", name="add"))
