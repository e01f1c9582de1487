"""What one request is to blame for fails that request, and the session remembers why; the run goes on."""

import asyncio

import pytest

from agentrl_core.api.reasoning import REASONING_FORMATS
from agentrl_core.chat.replies import ReplyFormat
from agentrl_core.errors import EngineError, UnservableError, UnstorableError

BODY = {"messages": [{"role": "user", "content": "hello"}]}
DEEP = b"[" * 300 + b"]" * 300


@pytest.mark.parametrize("stream", [False, True])
def test_half_a_character_in_a_sampled_call_is_a_malformed_call(gateway, session, send, engine, store, tools, stream):
    engine.replies = [text := r'<tool_call>{"name": "\ud800", "arguments": {}}</tool_call>']
    reply = send(session, {**BODY, "tools": tools, "stream": stream})
    assert reply.status_code == 200
    output = store.interactions[0].output
    assert output["content"] == text
    assert "not valid text" in output["tool_call_errors"][0]
    assert store.interactions[0].tool_errors == 1
    assert gateway.fatal is None


def test_a_parser_that_makes_what_cannot_be_sent_costs_no_run(gateway, session, send, engine, store, chat, tools):
    class Careless:
        openers = ("o",)
        starters = ()
        frames_text = False

        def read(self, source, sink, tools):
            yield from ()
            sink.call("\ud800", "{}")
            source.at = 2

    replaced = {"parser": Careless(), "replies": ReplyFormat(Careless(), REASONING_FORMATS["none"])}
    before = {name: getattr(chat, name) for name in replaced}
    try:
        vars(chat).update(replaced)
        reply = send(session, {**BODY, "tools": tools})
    finally:
        vars(chat).update(before)
    assert reply.json()["choices"][0]["message"]["content"] == "?: {}"
    assert store.interactions[0].tool_errors == 1


@pytest.mark.parametrize("field", ["metadata", "messages", "tools"])
def test_a_body_nested_too_deep_is_refused(gateway, session, send, field):
    body = b'{"messages": [{"role": "user", "content": "a"}], "%s": %s}' % (field.encode(), DEEP)
    reply = send(session, body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_json")
    assert "100" in reply.json()["error"]["message"]
    assert gateway.fatal is None


def test_large_unknown_fields_are_kept_in_part(session, send, store):
    assert send(session, {**BODY, "a": "x" * 5000, "b": [1]}).status_code == 200
    kept = store.interactions[0].requested
    assert kept == {"a": '"' + "x" * 4095 + "\u2026", "b": [1]}


def test_too_many_unknown_fields_are_refused(session, send, store):
    assert send(session, {**BODY, **{f"field{number}": "x" * 4000 for number in range(20)}}).status_code == 400
    assert store.interactions == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("error", [UnservableError("not this one"), UnstorableError("not this one")])
def test_a_failure_of_one_call_is_not_the_runs_end(gateway, session, send, engine, error, stream):
    engine.replies = [error]
    reply = send(session, {**BODY, "stream": stream})
    assert "not this one" in reply.text
    assert stream or reply.status_code == 400
    assert gateway.fatal is None
    assert session.refusal == "400 invalid_request: not this one"


def test_a_dead_engine_is_the_runs_end(gateway, session, send, engine):
    engine.replies = [EngineError("out of memory")]
    assert send(session, BODY).status_code == 500
    assert str(gateway.fatal) == "out of memory"
    assert session.refusal == "500 EngineError: out of memory"


def test_a_session_remembers_its_last_refusal(session, send):
    assert session.refusal == ""
    send(session, {**BODY, "top_p": 0})
    assert session.refusal.startswith("400 invalid_type: top_p must be")
    send(session, BODY)
    send(session, b"{")
    assert session.refusal.startswith("400 invalid_json: ")


def test_a_call_after_the_episode_changes_no_refusal(gateway, session, send):
    send(session, {**BODY, "top_p": 0})
    before = session.refusal
    asyncio.run(gateway.close_session(session))
    assert send(session, BODY).status_code == 410
    assert session.refusal == before
