"""What Anthropic's requests become in the gateway's one form, and what its replies are made of."""

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core.errors import RequestError
from agentrl_core.gateway.call_types import ChatRequest, Choice, Delta, Reply, ToolChoice
from agentrl_core.gateway.dialects.anthropic_messages import AnthropicMessages
from agentrl_core.types import Grammar, Interaction

USER = {"role": "user", "content": "hello"}
TOOL = {"name": "add", "input_schema": {"type": "object"}}


def parse(*, headers=None, **fields):
    body = {"model": "m", "max_tokens": 5, "messages": [USER], **fields}
    return AnthropicMessages().parse(orjson.loads(orjson.dumps(body)), headers or {})


def canonical(*messages, **fields):
    return list(parse(messages=list(messages), **fields).messages)


def text(value, **more):
    return {"type": "text", "text": value, **more}


def result(content, call_id="c", **more):
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def use(call_id, given, name="add"):
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def call(call_id, arguments, name="add"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        (None, []),
        ("", []),
        ([], []),
        ([text("")], []),
        ("be brief", [{"role": "system", "content": "be brief"}]),
        ([text("a", cache_control={"type": "ephemeral"}), text("\nb")], [{"role": "system", "content": "a\nb"}]),
    ],
)
def test_the_system_prompt_is_the_first_message(system, expected):
    assert canonical(USER, system=system) == [*expected, USER]


def test_results_come_before_what_the_user_says():
    blocks = [result("1", "a"), result([text("2"), text("3")], "b", is_error=True), text("and "), text("now?")]
    assert canonical({"role": "user", "content": blocks}) == [
        {"role": "tool", "content": "1", "tool_call_id": "a"},
        {"role": "tool", "content": "23", "tool_call_id": "b"},
        {"role": "user", "content": "and now?"},
    ]


def test_results_alone_make_no_message_of_the_user():
    messages = canonical({"role": "user", "content": [result(None), text("", cache_control={"type": "ephemeral"})]})
    assert messages == [{"role": "tool", "content": "", "tool_call_id": "c"}]
    assert canonical({"role": "user", "content": []}) == [{"role": "user", "content": ""}]


def test_a_turn_of_the_assistant_is_one_message():
    blocks = [
        {"type": "thinking", "thinking": "h", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "thinking", "thinking": "m", "signature": "s"},
        text("Adding", citations=None),
        use("a", {"b": 1.0, "a": "é"}),
    ]
    split = [{"role": "assistant", "content": blocks[:4]}, {"role": "assistant", "content": blocks[4:]}]
    for turn in ([{"role": "assistant", "content": blocks}], split):
        assert canonical(USER, *turn, USER)[1] == {
            "role": "assistant",
            "content": "Adding",
            "reasoning_content": "hm",
            "tool_calls": [call("a", '{"b":1.0,"a":"é"}')],
        }
    assert canonical(USER, {"role": "assistant", "content": []}, USER)[1] == {"role": "assistant", "content": ""}


def test_instructions_may_come_later():
    later = {"role": "system", "content": [text("now "), text("in French")]}
    assert canonical(USER, later) == [USER, {"role": "system", "content": "now in French"}]


def test_images_become_parts():
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    url = "data:image/png;base64,AAAA"
    pictures = [{"type": "image", "source": source}, {"type": "image", "source": {"type": "url", "url": url}}]
    parts = [{"type": "image_url", "image_url": {"url": url}}] * 2
    assert canonical({"role": "user", "content": [text("see"), *pictures]}) == [
        {"role": "user", "content": [text("see"), *parts]}
    ]
    assert canonical({"role": "user", "content": [result(pictures)]})[0]["content"] == parts


def test_a_tools_type_must_be_a_word():
    with pytest.raises(RequestError, match=r"tools\[0\]"):
        parse(tools=[{**TOOL, "type": ["custom"]}])


def test_tools_have_openais_shape_and_no_marks():
    marked = {**TOOL, "type": "custom", "description": "Adds.", "cache_control": {"type": "ephemeral"}, "strict": True}
    function = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    assert parse(tools=[marked]).tools == ({"type": "function", "function": function},)
    assert parse(tools=[TOOL]).tools[0]["function"] == {"name": "add", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": "auto"}, ToolChoice()),
        ({"type": "any"}, ToolChoice(mode="required")),
        ({"type": "tool", "name": "add"}, ToolChoice(mode="required", names=("add",))),
        ({"type": "none"}, ToolChoice(mode="none")),
    ],
)
def test_tool_choices(given, expected):
    for parallel in (True, False):
        request = parse(tools=[TOOL], tool_choice={**given, "disable_parallel_tool_use": not parallel})
        assert (request.tool_choice, request.parallel_tool_calls) == (expected, parallel)


@pytest.mark.parametrize(
    ("thinking", "options", "ignored"),
    [
        (None, {}, {}),
        ({"type": "enabled", "budget_tokens": 2000}, {"enable_thinking": True}, {"budget_tokens": 2000}),
        ({"type": "disabled"}, {"enable_thinking": False}, {}),
        ({"type": "adaptive", "display": "omitted"}, {}, {"display": "omitted"}),
    ],
)
def test_the_client_may_decide_about_thinking(thinking, options, ignored):
    request = parse(thinking=thinking)
    assert request.template_options == options
    assert request.ignored == ({"thinking": {**thinking, **ignored}} if ignored else {})


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_a_schema_becomes_a_grammar(field):
    value = {"type": "json_schema", "schema": {"type": "object"}}
    request = parse(**{field: {"format": value, "effort": "low"} if field == "output_config" else value})
    assert request.grammar == Grammar(kind="json_schema", value='{"type":"object"}')
    assert request.ignored == ({"output_config": {"effort": "low"}} if field == "output_config" else {})


def test_the_rest_of_a_request():
    request = parse(
        temperature=0.5, top_p=0.9, top_k=3, stop_sequences=["a", "b"], stream=True, service_tier="auto", speed=None
    )
    assert (request.api, request.model, request.max_tokens) == ("messages", "m", 5)
    assert (request.temperature, request.top_p, request.top_k, request.stop) == (0.5, 0.9, 3, ("a", "b"))
    assert (request.stream, request.trainable, request.grammar) == (True, True, None)
    assert request.ignored == {"service_tier": "auto"}
    assert parse(headers={"x-agentrl-trainable": "false"}).trainable is False


def test_counting_needs_no_limit():
    assert AnthropicMessages().parse_count({"messages": [USER]}, {}).max_tokens is None
    with pytest.raises(RequestError, match="max_tokens"):
        AnthropicMessages().parse({"messages": [USER]}, {})


BLOCKS = ("text", "image", "thinking", "tool_use", "tool_result", "document")
KEYS = (
    "type",
    "id",
    "name",
    "text",
    "input",
    "tool_use_id",
    "content",
    "source",
    "data",
    "media_type",
    "url",
    "schema",
)
WORDS = ("base64", "file", "custom", "auto", "any", "tool", "enabled", "json_schema", "input_schema", "format")
FIELDS = ("system", "tools", "tool_choice", "thinking", "output_config", "output_format", "stop_sequences", "top_k")

words = st.sampled_from((*BLOCKS, *KEYS, *WORDS))
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(allow_nan=False) | words | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)
blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(BLOCKS) | anything}, optional=dict.fromkeys(KEYS[1:8], anything)
)
roles = st.sampled_from(["user", "assistant", "system"]) | anything
messages = st.fixed_dictionaries({"role": roles, "content": st.lists(blocks, max_size=3) | anything})


@settings(max_examples=300, deadline=None)
@given(st.lists(messages, max_size=3) | anything, st.dictionaries(st.sampled_from(FIELDS), anything, max_size=3))
def test_any_json_is_read_or_refused(messages, more):
    try:
        request = AnthropicMessages().parse({"max_tokens": 5, "messages": messages, **more}, {})
    except RequestError as refusal:
        status = refusal.status
    else:
        status = 200
        assert {message["role"] for message in request.messages} <= {"system", "user", "assistant", "tool"}
        assert orjson.dumps([request.messages, request.tools, request.ignored])
    assert status in {200, 400}


# --- replies -----------------------------------------------------------------------------------------------------


def make_reply(output, **fields):
    interaction = Interaction(
        id="msg_1",
        record_id="r",
        seq=0,
        prompt_ids=(1,) * 10,
        output_ids=(2, 3, 4),
        logprobs=(0.0, 0.0, 0.0),
        versions=((0, 3),),
        messages=(USER,),
        output={"role": "assistant", **output},
        cached_tokens=4,
    )
    fields = {"prompt_tokens": 10, "finish_reason": "stop", **fields}
    return Reply(request=ChatRequest(model="m"), choices=(Choice(interaction=interaction, **fields),))


def body_of(reply):
    return json.loads(orjson.dumps(AnthropicMessages().response(reply, str)))


def ending_of(reply):
    """The last events of a stream, but one."""
    writer = AnthropicMessages().writer(reply.request, reply.head, str)
    return json.loads(writer.end(reply).split(b"\n\n")[-3].partition(b"data: ")[2])


def test_cached_tokens_are_counted_apart():
    reply = make_reply({"content": "hi"}, reasoning_tokens=2)
    usage = {
        "input_tokens": 6,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "output_tokens": 3,
        "output_tokens_details": {"thinking_tokens": 2},
    }
    assert body_of(reply)["usage"] == usage
    assert ending_of(reply)["usage"] == usage


@pytest.mark.parametrize(
    ("finish_reason", "stop_string", "reason", "sequence"),
    [
        ("stop", None, "end_turn", None),
        ("stop", "END", "stop_sequence", "END"),
        ("length", None, "max_tokens", None),
        ("tool_calls", None, "tool_use", None),
        ("tool_calls", "END", "tool_use", None),
    ],
)
def test_stop_reasons(finish_reason, stop_string, reason, sequence):
    reply = make_reply({"content": "hi"}, finish_reason=finish_reason, stop_string=stop_string)
    for ended in (body_of(reply), ending_of(reply)["delta"]):
        assert (ended["stop_reason"], ended["stop_sequence"]) == (reason, sequence)


def test_a_reply_has_a_text_or_a_call():
    arguments = '{"big": 123456789012345678901, "one": 1.0}'
    assert body_of(make_reply({"content": ""}))["content"] == [text("")]
    (block,) = body_of(make_reply({"content": None, "tool_calls": [call("c", arguments)]}))["content"]
    assert block == use("c", {"big": 123456789012345678901, "one": 1.0})


def test_texts_have_no_null_citations_which_the_ai_sdk_refuses():
    reply = make_reply({"content": "hi"})
    writer = AnthropicMessages().writer(reply.request, reply.head, str)
    streamed = writer.begin() + writer.delta(Delta(content="hi")) + writer.end(reply)
    assert b"content_block_start" in streamed
    for told in json.dumps(body_of(reply)), streamed.decode():
        assert "citations" not in told


@pytest.mark.parametrize("arguments", ["{oops", "[1]", "", '{"a": NaN}'])
def test_arguments_that_are_no_object_are_shown_as_such(arguments):
    reply = make_reply({"content": None, "tool_calls": [call("c", arguments)]})
    assert body_of(reply)["content"] == [use("c", {"malformed_arguments": arguments})]
    writer = AnthropicMessages().writer(reply.request, reply.head, str)
    (streamed,) = [line for line in writer.end(reply).decode().splitlines() if "input_json_delta" in line]
    told = json.loads(streamed.removeprefix("data: "))["delta"]["partial_json"]
    assert json.loads(told) == {"malformed_arguments": arguments}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (409, "conflict_error"),
        (410, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_errors_have_anthropics_types(status, kind):
    error = AnthropicMessages().error(RequestError(status, "some_code", "half a character: \ud800"))
    assert error == {
        "type": "error",
        "error": {"type": kind, "message": "half a character: \\ud800", "details": {"error_code": "some_code"}},
        "request_id": None,
    }
