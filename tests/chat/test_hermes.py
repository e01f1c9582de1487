"""What the Hermes parser reads, reports and keeps."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.api.reasoning import REASONING_FORMATS
from agentrl_core.chat.parsers.hermes import HermesParser
from agentrl_core.chat.replies import ReplyFormat, parse_reply


def parse(text):
    return parse_reply(text, ReplyFormat(HermesParser(), REASONING_FORMATS["none"]))


def calls(reply):
    return [(call["function"]["name"], call["function"]["arguments"]) for call in reply.tool_calls]


def block(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


# The cases of AgentCPM's `parse_tool_for_qwen`, and what it makes of them.
GOLDEN = [
    (
        '<think>x</think><tool_call>{"name":"search","arguments":{"query":"a"}}</tool_call>',
        [("search", {"query": "a"})],
    ),
    (
        '<tool_call>{"name":"PythonInterpreter","arguments":{}}\n<code>\nprint(1)\n</code>\n</tool_call>',
        [("PythonInterpreter", {"code": "print(1)"})],
    ),
    (
        (
            '<tool_call>{"name":"a","arguments":{"x":1}} trailing</tool_call>'
            '<tool_call>{"name":"b","arguments":{}}</tool_call>'
        ),
        [("a", {"x": 1}), ("b", {})],
    ),
    # It makes a call without a name of this; a call that cannot be read is no call here, and stays visible.
    ("<tool_call>not json</tool_call>", []),
    # It passes the bare object on, and fails later; arguments are required here.
    ('<tool_call>{"name":"x"}</tool_call>', []),
    # It says nothing at all; here the missing tag is reported.
    ('<tool_call>{"name":"a","arguments":{}}', []),
]


@pytest.mark.parametrize(("text", "expected"), GOLDEN)
def test_golden_cases_give_the_calls_of_the_original(text, expected):
    assert [(name, json.loads(arguments)) for name, arguments in calls(parse(text))] == expected


@pytest.mark.parametrize("text", [text for text, expected in GOLDEN if not expected])
def test_a_call_that_cannot_be_read_is_reported_and_stays_in_the_content(text):
    reply = parse(text)
    assert reply.content == text
    assert len(reply.errors) == 1


def test_plain_text_is_content_untouched():
    text = "  a <tool_cal b\n"
    assert parse(text) == type(parse(""))(content=text)


def test_parallel_calls_get_different_ids_and_keep_their_order():
    reply = parse(f"Both.\n{block('f', '{}')}\n{block('f', '{}')}\n{block('g', '[]')[:-1]}x")
    assert calls(reply) == [("f", "{}"), ("f", "{}")]
    assert len({call["id"] for call in reply.tool_calls}) == 2
    assert all(call["type"] == "function" for call in reply.tool_calls)
    assert reply.content == f"Both.\n{block('g', '[]')[:-1]}x"
    assert len(reply.errors) == 1


def test_arguments_are_the_text_that_the_model_wrote():
    assert calls(parse(block("f", '{"b":1,  "a": "\\u00e9"}'))) == [("f", '{"b":1,  "a": "\\u00e9"}')]


def test_tags_inside_of_strings_are_text():
    arguments = '{"text": "</tool_call><tool_call>"}'
    assert calls(parse(block("f", arguments))) == [("f", arguments)]


def test_a_call_that_is_only_considered_is_not_a_call():
    text = f"<think>{block('f', '{}')}</think>No."
    assert parse(text).content == text
    assert parse(text).tool_calls == ()


def test_a_missing_close_tag_does_not_swallow_the_next_call():
    reply = parse(f'<tool_call>{{"name": "a", "arguments": {{}}}}\n{block("b", "{}")}')
    assert calls(reply) == [("b", "{}")]
    assert "'a' is not closed" in reply.errors[0]
    assert '"name": "a"' in reply.content


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "", "arguments": {}}',
        '{"name": 1, "arguments": {}}',
        '{"name": "f", "arguments": "{}"}',
        '{"name": "f", "arguments": {"x": NaN}}',
        '{"name": "f", "arguments": {},}',
        '{"name": "f" "arguments": {}}',
        '{name: "f", "arguments": {}}',
        '{"a": ' * 3000,
        "[]",
        "{}",
        "",
    ],
)
def test_malformed_bodies_are_reported(body):
    text = f"before <tool_call>{body}</tool_call> after"
    reply = parse(text)
    assert (reply.content, reply.tool_calls, len(reply.errors)) == (text, (), 1)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(
        st.tuples(st.text(min_size=1), st.dictionaries(st.text(), json_values, max_size=3)), min_size=1, max_size=3
    ),
    st.text(alphabet=st.characters(exclude_characters="<")),
    st.booleans(),
)
def test_what_was_written_comes_back(written, content, ascii_only):
    blocks = [
        "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=ascii_only) + "\n</tool_call>"
        for name, arguments in written
    ]
    reply = parse(content + "\n" + "\n".join(blocks))
    assert [(name, json.loads(arguments)) for name, arguments in calls(reply)] == written
    assert reply.content == content.rstrip()
    assert reply.errors == ()


pieces = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        '{"name": "f", "arguments": {}}',
        "{",
        '"',
        "\\",
        " ",
        "\n",
        "x",
    ]
)


@given(st.lists(pieces, max_size=12).map("".join))
def test_any_text_is_parsed_without_loss(text):
    reply = parse(text)
    before = text[: text.find("<tool_call>")] if "<tool_call>" in text else text
    assert reply.content.startswith(before.rstrip())
    if not reply.tool_calls:
        assert reply.content == text
    unread = not (reply.tool_calls or reply.errors)
    if "<think>" not in text:
        assert unread == ("<tool_call>" not in text)
    if unread:
        assert "<tool_call>" not in re.sub("<think>.*?</think>", "", text, flags=re.DOTALL)


@pytest.mark.parametrize(
    "text",
    [
        block(r"\ud800", "{}"),
        block("f", r'{"x": ["\udfff"]}'),
        block("f", r'{"\ud83d": 1}'),
        '<tool_call>{"name": "execute_code", "arguments": {"x": "\\ud800"}}<code>1</code></tool_call>',
    ],
)
def test_half_a_character_makes_a_call_malformed(text):
    reply = parse(text)
    assert (reply.content, reply.tool_calls, len(reply.errors)) == (text, (), 1)


def test_a_whole_character_of_two_escapes_is_fine():
    assert calls(parse(block("f", r'{"x": "\ud83d\ude00"}'))) == [("f", r'{"x": "\ud83d\ude00"}')]
