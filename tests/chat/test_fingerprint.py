"""The same conversation has one fingerprint, however a client writes it down."""

import pytest

from agentrl_core.chat.fingerprint import Fingerprint

TOOLS = [{"type": "function", "function": {"name": "f"}}]


def digest(*messages, tools=()):
    fingerprint = Fingerprint(tools)
    return [fingerprint.add(message) for message in messages][-1]


def calling(arguments, call_id="c1", **extra):
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call], **extra}


@pytest.mark.parametrize(
    "other",
    [
        calling('{"a":1,"b":"\\u00e9"}'),
        calling('{"b": "é", "a": 1}'),
        calling('{"a": 1, "b": "é"}', content=None),
        calling('{"a": 1, "b": "é"}', call_id="rewritten"),
        calling('{"a": 1, "b": "é"}', refusal=None, annotations=[]),
        calling('{"a": 1, "b": "é"}', name="planner"),
    ],
)
def test_a_rewritten_call_is_the_same(other):
    assert digest(other) == digest(calling('{"a": 1, "b": "é"}'))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (calling('{"a": 1}'), calling('{"a": 2}')),
        (calling("{not json"), calling("{not  json")),
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a "}),
        ({"role": "user", "content": "a"}, {"role": "system", "content": "a"}),
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a", "name": "b"}),
    ],
)
def test_a_different_message_is_different(one, other):
    assert digest(one) != digest(other)


def test_a_stripped_reply_is_the_same():
    assert digest({"role": "assistant", "content": " a\n"}) == digest({"role": "assistant", "content": "a"})


def test_no_arguments_are_empty_arguments():
    assert digest(calling("")) == digest(calling("{}"))


def test_tools_and_earlier_messages_count():
    message = {"role": "user", "content": "a"}
    assert digest(message, tools=TOOLS) != digest(message)
    assert digest(message, message) != digest(message)


def test_results_belong_to_their_calls_whatever_the_ids_are():
    def dialogue(first, second, answers):
        calls = {
            "role": "assistant",
            "content": "",
            "tool_calls": [*calling("{}", first)["tool_calls"], *calling("{}", second)["tool_calls"]],
        }
        return digest(calls, *({"role": "tool", "content": "r", "tool_call_id": answer} for answer in answers))

    assert dialogue("a", "b", ["a", "b"]) == dialogue("x", "y", ["x", "y"])
    assert dialogue("a", "b", ["a", "b"]) != dialogue("a", "b", ["b", "a"])


def assistant_call(arguments):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


@pytest.mark.parametrize(
    "message",
    [{"role": "user", "content": "\ud800"}, assistant_call('{"a":' + "[" * 400 + "]" * 400 + "}")],
    ids=["surrogate", "deep arguments"],
)
def test_what_json_can_hardly_hold_has_a_digest_too(message):
    assert Fingerprint(()).add(message) == Fingerprint(()).add(dict(message))


@pytest.mark.parametrize(
    ("written", "by_javascript"),
    [
        ('{"a": [1.0, -0.0, 1e5, 2.50]}', '{"a":[1,0,100000,2.5]}'),
        ('{"a": 9007199254740993, "b": 100000000000000000000.0}', '{"a":9007199254740992,"b":100000000000000000000}'),
        ('{"a": 1e21, "b": 1E-7, "c": 0.000001}', '{"a":1e+21,"b":1e-7,"c":0.000001}'),
        ('{"a": "1.0 and 1e5"}', '{"a":"1.0 and 1e5"}'),
    ],
)
def test_a_call_may_come_back_from_javascript(written, by_javascript):
    question = {"role": "user", "content": "a"}
    fingerprint = Fingerprint(())
    fingerprint.add(question)
    digests = fingerprint.after(calling(written))
    assert digest(question, calling(written)) in digests
    assert digest(question, calling(by_javascript)) in digests
    assert digest(question, calling('{"a": 3}')) not in digests
    assert fingerprint.after(calling(written)) == digests  # it has not moved on
