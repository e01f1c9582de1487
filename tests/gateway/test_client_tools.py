"""Custom tools and tools in namespaces: the client's own, which the policy sees as functions."""

import asyncio
import itertools
import json

import pytest

from agentrl_core.weights.witness import verify

SPAWN = {"type": "function", "name": "spawn", "parameters": {"type": "object", "properties": {}}, "strict": False}
GROUP = {"type": "namespace", "name": "agents", "description": "Sub-agents.", "tools": [SPAWN]}
PATCH = {"type": "custom", "name": "patch", "description": "Patches.", "format": {"type": "text"}}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
USER = {"role": "user", "content": "hi"}


def called(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


@pytest.fixture
def respond(send, session):
    return lambda body: send(session, body, path="/v1/responses")


def events_of(reply):
    return [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]


def continues(engine):
    """Whether every prompt begins with the exact prompt and output of the call before."""
    calls = engine.log
    return all(
        later.request.prompt_ids[: len(one.request.prompt_ids) + len(one.ids)] == one.request.prompt_ids + one.ids
        for one, later in itertools.pairwise(calls)
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_of_a_grouped_tool_has_its_namespace_and_is_recognised(respond, engine, store, chat, stream):
    engine.replies = ["On it. " + called("agents__spawn", {"task": "x"}), "done"]
    turns = [USER]
    body = {"tools": [GROUP], "stream": stream}
    reply = respond({**body, "input": turns})
    response = events_of(reply)[-1]["response"] if stream else reply.json()
    message, call = response["output"]
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "agents", "spawn")
    assert json.loads(call["arguments"]) == {"task": "x"}
    if stream:
        (done,) = [event for event in events_of(reply) if event["type"] == "response.function_call_arguments.done"]
        assert (done["name"], done["arguments"]) == ("spawn", call["arguments"])
    assert response["tools"] == [{"type": "namespace", "name": "agents", "tools": [{**SPAWN, "description": None}]}]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
    respond({**body, "input": [*turns, message, call, output]})
    assert continues(engine)
    assert '"name": "agents__spawn"' in chat.decode(engine.log[0].request.prompt_ids)
    first, second = store.interactions
    assert second.parent == first.id
    assert verify(asyncio.run(store.episode("r0"))).share == 1.0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"input": "*** Begin\n+é\n"}, "*** Begin\n+é\n"),
        ({"input": '{"a": 1}'}, '{"a": 1}'),
        # not of the form that the policy was told: the client sees all of it
        ({"command": "ls"}, '{"command": "ls"}'),
        ({"input": 1}, '{"input": 1}'),
    ],
)
def test_a_custom_tool_gets_a_text_and_its_call_is_recognised(respond, engine, store, arguments, text, stream):
    engine.replies = [called("patch", arguments), "done"]
    body = {"tools": [PATCH], "stream": stream}
    reply = respond({**body, "input": "hi"})
    events = events_of(reply) if stream else []
    response = events[-1]["response"] if stream else reply.json()
    (call,) = response["output"]
    stem = response["id"].removeprefix("resp_")
    assert (call["type"], call["id"], call["name"]) == ("custom_tool_call", f"ctc_{stem}_0", "patch")
    assert call["input"] == text
    if stream:
        kinds = [event["type"].removeprefix("response.") for event in events[2:-1]]
        added, *pieces, done = kinds
        assert (added, done) == ("output_item.added", "output_item.done")
        assert pieces == ["custom_tool_call_input.delta", "custom_tool_call_input.done"]
        assert events[2]["item"]["input"] == ""
        assert (events[3]["delta"], events[4]["input"], events[5]["item"]) == (text, text, call)
    assert response["tools"] == [PATCH]
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "ok"}
    respond({**body, "input": [USER, {**call, "id": None}, output]})
    assert continues(engine)
    assert store.interactions[1].messages == ({"role": "tool", "content": "ok", "tool_call_id": call["call_id"]},)


def test_the_policy_sees_a_custom_tool_with_its_grammar(respond, engine, store):
    respond({"input": "hi", "tools": [{**PATCH, "format": GRAMMAR}]})
    (tool,) = store.interactions[0].tools
    argument = {"type": "string", "description": 'A text of this lark grammar:\nstart: "a"'}
    assert tool["function"] == {
        "name": "patch",
        "description": "Patches.",
        "parameters": {"type": "object", "properties": {"input": argument}, "required": ["input"]},
    }


def test_stored_responses_and_their_items_have_the_clients_forms(send, session, respond, engine):
    engine.replies = [called("patch", {"input": "a"}) + called("agents__spawn", {}), "done"]
    tools = [PATCH, GROUP]
    made = respond({"input": "hi", "tools": tools}).json()
    results = [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "ok"} for item in made["output"]
    ]
    named = [{"type": "item_reference", "id": item["id"]} for item in made["output"]]
    assert respond({"input": [USER, *named, *results], "tools": tools}).status_code == 200
    assert continues(engine)
    kept = send(session, None, path=f"/v1/responses/{made['id']}", method="GET").json()
    assert kept == made
    last = respond({"input": "on", "previous_response_id": made["id"], "tools": tools}).json()
    items = send(session, None, path=f"/v1/responses/{last['id']}/input_items", method="GET").json()["data"]
    assert [item["type"] for item in items] == ["message", "function_call", "custom_tool_call", "message"]
    assert (items[1]["namespace"], items[2]["input"]) == ("agents", "a")


def test_results_of_custom_tools_are_listed_as_such(send, session, respond, engine):
    engine.replies = [called("patch", {"input": "a"}), "done"]
    (call,) = respond({"input": "hi", "tools": [PATCH]}).json()["output"]
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "ok"}
    last = respond({"input": [USER, call, output], "tools": [PATCH]}).json()
    items = send(session, None, path=f"/v1/responses/{last['id']}/input_items", method="GET").json()["data"]
    assert [item["type"] for item in items] == ["custom_tool_call_output", "custom_tool_call", "message"]
    assert (items[0]["status"], items[0]["output"]) == ("completed", "ok")


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "custom", "name": "patch"}, ("patch",)),
        ({"type": "function", "name": "spawn", "namespace": "agents"}, ("agents__spawn",)),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "web_search"}, {"type": "custom", "name": "patch"}],
            },
            ("patch",),
        ),
    ],
)
def test_such_tools_can_be_required(respond, engine, choice, names):
    grammars = []
    engine.replies = [called(names[0], {"input": "a"})]
    reply = respond({"input": "hi", "tools": [PATCH, GROUP], "tool_choice": choice})
    assert reply.status_code == 200, reply.text
    grammars = engine.log[0].request.sampling.grammar.value
    assert names[0] in grammars
    assert ({"patch", "agents__spawn"} - set(names)).pop() not in grammars


def test_a_field_of_the_traces_own_name_is_ignored(send, session, respond):
    made = respond({"input": "hi", "tool_forms": "x"}).json()
    assert send(session, None, path=f"/v1/responses/{made['id']}", method="GET").json() == made


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", [{"type": "text"}, {"type": "grammar", "grammar": GRAMMAR}])
def test_chat_completions_have_custom_tools(send, session, engine, store, form, stream):
    engine.replies = [called("patch", {"input": "a b"}), "done"]
    custom = {"name": "patch", "description": "Patches.", "format": form}
    body = {"tools": [{"type": "custom", "custom": custom}], "stream": stream}
    reply = send(session, {**body, "messages": [USER]})
    if stream:
        events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        ((call,),) = [event["choices"][0]["delta"].get("tool_calls") for event in events[1:-1]]
        assert call.pop("index") == 0
    else:
        (call,) = reply.json()["choices"][0]["message"]["tool_calls"]
    assert call["type"] == "custom"
    assert call["custom"] == {"name": "patch", "input": "a b"}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
    send(session, {**body, "messages": [USER, said, result]})
    assert continues(engine)
    description = store.interactions[0].tools[0]["function"]["parameters"]["properties"]["input"].get("description")
    assert (description is not None) == (form["type"] == "grammar")
