"""Rows of every shape, and what is said of lines that are none."""

import json

import pytest

from agentrl_core.data.demonstrations import TokenRow, load_demonstrations
from agentrl_core.errors import DataError

USER, REPLY = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}
TOOLS = [{"type": "function", "function": {"name": "add"}}]


@pytest.fixture
def load(tmp_path):
    def of(*rows):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return load_demonstrations(path)

    return of


def test_a_chat_has_a_weight_for_each_message(load):
    chat = [USER, REPLY, USER, REPLY | {"weight": 0.5}, USER, REPLY | {"weight": 0}]
    (row,) = load({"messages": chat, "tools": TOOLS, "weight": 4, "note": "ignored"})
    assert row.weights == [0, 4.0, 0, 2.0, 0, 0.0]
    assert list(row.messages) == [USER, REPLY] * 3  # templates see no weights
    assert row.chat == {"messages": [USER, REPLY] * 3, "tools": TOOLS}
    assert row.where.endswith("rows.jsonl:1")
    assert row.tokens is None


def test_token_rows_have_spans_with_weights(load):
    bare, full = load(
        {"ids": [5, 6, 7, 8], "spans": [[1, 2], [3, 4, 0.5]], "weight": 2},
        {"messages": [USER, REPLY], "ids": [5, 6], "spans": [[1, 2]], "tokenizer": "abc", "reward": 1.0},
    )
    assert bare.tokens == TokenRow(ids=[5, 6, 7, 8], spans=[(1, 2, 2.0), (3, 4, 1.0)])
    assert bare.messages == []
    assert full.tokens.tokenizer == "abc"
    assert list(full.messages) == [USER, REPLY]


def test_prompt_and_completion_are_a_chat_of_which_the_completion_is_trained(load):
    texts, messages = load(
        {"prompt": "2 + 2?", "completion": "4"}, {"prompt": [USER, REPLY, USER], "completion": [REPLY]}
    )
    assert (list(texts.messages), texts.weights) == ([USER, REPLY], [0, 1])
    assert (list(messages.messages), messages.weights) == ([USER, REPLY] * 2, [0, 0, 0, 1])


def test_sharegpt_conversations_are_chats(load):
    turns = [
        {"from": "human", "value": "2 + 2?"},
        {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 2, "b": 2}}'},
        {"from": "observation", "value": "4"},
        {"from": "gpt", "value": "4", "weight": 0.5},
    ]
    (row,) = load({"conversations": turns, "system": "Add.", "tools": json.dumps(TOOLS)})
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}
    assert list(row.messages) == [
        {"role": "system", "content": "Add."},
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "4"},
        REPLY,
    ]
    assert row.weights == [0, 0, 1, 0, 0.5]
    assert row.tools == TOOLS


def test_messages_are_what_a_gateway_would_make_of_them(load):
    parts = [{"type": "text", "text": "2 +"}, {"type": "text", "text": " 2?"}]
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}, parts[0]]
    (row,) = load(
        {
            "messages": [
                {"role": "developer", "content": [{"type": "text", "text": "Add."}]},
                {"role": "user", "content": parts},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "4"}]},
                {"role": "user", "content": image},
                {"role": "assistant", "content": [{"type": "text", "text": "4"}]},
            ]
        }
    )
    assert list(row.messages) == [
        {"role": "system", "content": "Add."},
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "4"},
        {"role": "user", "content": image},
        REPLY,
    ]


def test_what_a_policy_said_may_be_nothing(load):
    silent = {"role": "assistant", "content": None}
    sampled, shown = load(
        {"messages": [USER, silent], "ids": [5, 6], "spans": [[1, 2]]},
        {"messages": [USER, silent | {"weight": 0}, USER, REPLY]},
    )
    assert list(sampled.messages) == [USER, {"role": "assistant", "content": ""}]
    assert shown.weights == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "not valid JSON"),
        ('{"messages": [{"role": "us', "not valid JSON: Unterminated string starting at (column 24)"),
        ([1], "expected a JSON object, found a list"),
        ({"text": "a"}, "expected `messages` (a list), `ids` and `spans`, `prompt` and `completion`, or "),
        ({"messages": "hi"}, "messages: expected a list of messages, found a text"),
        ({"messages": [USER]}, "no assistant message, so there is nothing to learn"),
        ({"messages": [USER, REPLY | {"weight": 0}]}, "no assistant message with a weight above 0"),
        ({"messages": [USER, REPLY], "weight": 0}, "weight: 0, so there is nothing to learn"),
        ({"messages": [USER, {"role": "assistant"}]}, "messages.1: expected an assistant message with `content`"),
        (
            {"messages": [USER, {"role": "assistant", "content": None}]},
            "messages.1: its content is null and it calls no",
        ),
        (
            {"messages": [USER, {"role": "assistant", "content": None, "function_call": {"name": "add"}}]},
            "messages.1.function_call: is OpenAI's old form, which chat templates do not support; use tool_calls",
        ),
        ({"messages": [USER, REPLY | {"content": 4}]}, "messages.1.content: expected a text, a list of parts or null"),
        ({"messages": [USER, REPLY | {"content": ["4"]}]}, "messages.1.content.0: expected a part like {"),
        ({"messages": [USER, REPLY | {"content": [{"type": "text"}]}]}, "messages.1.content.0.text: expected a text"),
        ({"messages": [USER | {"weight": 1}, REPLY]}, "messages.0.weight: only assistant messages are trained"),
        ({"messages": [USER, REPLY | {"weight": -1}]}, "messages.1.weight: expected a number from 0 to 1000000"),
        ({"messages": [USER, REPLY | {"weight": True}]}, "messages.1.weight: expected a number from 0 to 1000000"),
        (
            {"messages": [USER, REPLY], "weight": 1e39},
            "weight: expected a number from 0 to 1000000, found the number 1e",
        ),
        ({"messages": [USER, "4"]}, "messages.1: expected an object with a role, found a text"),
        ({"messages": [{"content": "4"}]}, "messages.0.role: expected a text, found nothing"),
        (
            {"messages": [USER, REPLY, REPLY | {"role": "asistant"}]},
            "messages.2.role: 'asistant' is not a role of a chat (did you mean assistant?)",
        ),
        ({"messages": [USER, REPLY], "tools": "{"}, "tools: expected JSON, found '{'"),
        ({"messages": [USER, REPLY], "tools": {"a": 1}}, "tools: expected a list of objects, found an object"),
        ({"prompt": "a"}, "completion: expected a text or a list of messages, found nothing"),
        ({"conversations": [{"from": "robot", "value": "a"}]}, "conversations.0.from: expected one of human, user"),
        ({"conversations": [{"from": "gpt"}]}, 'conversations.0: expected {"from": …, "value": a text}'),
        ({"ids": [1, "2"], "spans": [[1, 2]]}, "ids: expected a list of token ids"),
        ({"ids": [1, -2], "spans": [[1, 2]]}, "ids: expected a list of token ids"),
        ({"ids": [1, 2]}, "spans: expected a list of [start, end], found nothing"),
        ({"ids": [1, 2], "spans": [[0, 2]]}, "spans.0: expected 1 <= start < end <= 2"),
        ({"ids": [1, 2, 3], "spans": [[1, 3], [2, 3]]}, "spans.1: expected 3 <= start"),
        ({"ids": [1, 2], "spans": [[1, 3]]}, "spans.0: expected 1 <= start < end <= 2"),
        ({"ids": [1, 2], "spans": [[1]]}, "spans.0: expected [start, end] or [start, end, weight]"),
        ({"ids": [1, 2], "spans": [[1, 2, 0]]}, "spans: none has a weight above 0"),
    ],
)
def test_a_bad_line_is_named_with_what_was_expected(load, row, said):
    with pytest.raises(DataError) as refused:
        load({"messages": [USER, REPLY]}, row)
    (line,) = str(refused.value).splitlines()
    assert line.split(":", 2)[1] == "2"
    assert said in line


def test_all_bad_lines_are_told_at_once(load):
    with pytest.raises(DataError, match=r"rows\.jsonl:1: .*\n.*rows\.jsonl:3: "):
        load("{", {"messages": [USER, REPLY]}, {"messages": []})


def test_a_file_without_rows_is_refused(load, tmp_path):
    with pytest.raises(DataError, match="no demonstrations in the file"):
        load("")
    with pytest.raises(DataError, match="cannot read the demonstration file"):
        load_demonstrations(tmp_path / "none.jsonl")
