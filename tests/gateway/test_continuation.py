"""Token fidelity: a conversation goes on from the exact ids that were sampled, whatever the client makes of it."""

import asyncio
import json
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI

from agentrl_core.types import Episode, Outcome, Record

USER = {"role": "user", "content": "hello"}


def turn(message, **extra):
    return [message, {"role": "user", "content": "go on"}, *extra.values()]


def wire(message):
    """The assistant message as the openai SDK's objects dump it."""
    return {"role": "assistant", "content": message.get("content"), "tool_calls": message.get("tool_calls")}


def test_a_dialogue_is_one_chain_of_exact_ids(session, send, store, engine, chat):
    engine.replies = ["first é", "second", "third"]
    messages = [USER]
    for _ in range(3):
        message = send(session, {"messages": messages}).json()["choices"][0]["message"]
        messages += turn(message)
    first, second, third = store.interactions
    assert [one.parent for one in store.interactions] == [None, first.id, second.id]
    for earlier, later in pairwise(engine.log):
        known = earlier.request.prompt_ids + earlier.ids
        assert later.request.prompt_ids[: len(known)] == known
    assert third.messages == ({"role": "user", "content": "go on"},)
    assert chat.decode(third.prompt_ids) == "\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    assert chat.decode(engine.log[2].request.prompt_ids) == chat.render(messages[:-2])


def test_a_turn_cut_by_its_length_is_closed_in_the_prompt_not_in_the_output(session, send, store, engine, chat):
    engine.replies = ["too long", "ok"]
    message = send(session, {"messages": [USER], "max_tokens": 3}).json()["choices"][0]["message"]
    send(session, {"messages": [USER, *turn(message)]})
    first, second = store.interactions
    assert chat.decode(first.output_ids) == "too"
    assert second.parent == first.id
    assert chat.decode(second.prompt_ids).startswith("<|im_end|>\n<|im_start|>user\n")


def test_a_turn_ended_by_a_stop_string_keeps_its_tokens(session, send, store, engine, chat):
    engine.replies = ["one END", "ok"]
    message = send(session, {"messages": [USER], "stop": "END"}).json()["choices"][0]["message"]
    send(session, {"messages": [USER, *turn(message)]})
    assert store.interactions[1].parent == store.interactions[0].id
    assert chat.decode(engine.log[1].request.prompt_ids).count("one END<|im_end|>") == 1


def test_a_stop_string_may_be_put_back(session, send, store, engine, chat):
    engine.replies = ["<think>x</think>\n<code>\n1\n</code>", "one", "two"]
    message = send(session, {"messages": [USER], "stop": ["END", "</code>"]}).json()["choices"][0]["message"]
    assert message["content"].endswith("<code>\n1\n")
    send(session, {"messages": [USER, *turn({**message, "content": message["content"] + "</code>"})]})
    send(session, {"messages": [USER, *turn({**message, "content": message["content"] + "END"})]})
    assert [one.parent for one in store.interactions] == [None, store.interactions[0].id, None]
    assert chat.decode(engine.log[1].request.prompt_ids).count("</code><|im_end|>") == 1


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda message: {**message, "content": ""},
        lambda message: {key: value for key, value in message.items() if key != "content"},
        lambda message: {**message, "refusal": None, "annotations": [], "audio": None, "function_call": None},
        lambda message: {**message, "content": [{"type": "text", "text": ""}]},
        lambda message: json.loads(json.dumps(message).replace('\\"a\\":1', '\\"a\\": 1')),
        lambda message: json.loads(json.dumps(message).replace("call_", "rewritten_")),
    ],
)
def test_calls_are_recognised_however_they_are_written_down(session, send, store, engine, tools, call_text, rewrite):
    engine.replies = [call_text("add", '{"a":1,"b":2}'), "3"]
    body = {"messages": [USER], "tools": tools}
    message = rewrite(send(session, body).json()["choices"][0]["message"])
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "3"}
    send(session, {"messages": [USER, message, result], "tools": tools})
    first, second = store.interactions
    assert second.parent == first.id


@pytest.mark.parametrize("change", ["edited reply", "other tools", "other question", "dropped turn"])
def test_a_changed_past_starts_anew(session, send, store, engine, tools, change):
    engine.replies = ["first", "second"]
    send(session, {"messages": [USER]})
    reply = {"role": "assistant", "content": "edited" if change == "edited reply" else "first"}
    question = {"role": "user", "content": "other"} if change == "other question" else USER
    past = [question] if change == "dropped turn" else [question, reply]
    send(session, {"messages": [*past, USER], **({"tools": tools} if change == "other tools" else {})})
    assert [one.parent for one in store.interactions] == [None, None]
    assert len(store.interactions[1].messages) == len(past) + 1


def test_branches_hang_on_the_call_that_they_share(session, send, store, engine):
    engine.replies = ["root", "left", "right", "left again"]
    root = [USER, *turn({"role": "assistant", "content": "root"})]
    send(session, {"messages": [USER]})
    send(session, {"messages": root})
    send(session, {"messages": root})
    send(session, {"messages": [*root, {"role": "assistant", "content": "left"}, USER]})
    send(session, {"messages": [*root, {"role": "assistant", "content": "edited"}, USER]})
    ids = [one.id for one in store.interactions]
    assert [one.parent for one in store.interactions] == [None, ids[0], ids[0], ids[1], ids[0]]
    assert [message["content"] for message in store.interactions[4].messages] == ["go on", "edited", "hello"]


def test_equal_calls_are_told_apart_by_their_ids(session, send, store, engine, tools, call_text):
    engine.replies = [call_text("add", "{}")] * 2
    body = {"messages": [USER], "tools": tools}
    replies = [send(session, body).json()["choices"][0]["message"] for _ in range(2)]
    for message in replies:
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "0"}
        send(session, {**body, "messages": [USER, message, result]})
    ids = [one.id for one in store.interactions]
    assert [one.parent for one in store.interactions[2:]] == ids[:2]


def test_history_template_forks_where_the_render_differs(make_gateway, open_session, send_to, store, engine, chat):
    gateway = make_gateway(history="template")
    session = open_session(gateway)
    engine.replies = ["abc", "x"]  # sampled in other ids than the tokenizer would choose
    send_to(gateway, session, {"messages": [USER]})
    dialogue = [USER, *turn({"role": "assistant", "content": "abc"})]
    send_to(gateway, session, {"messages": dialogue})
    assert engine.log[1].request.prompt_ids == tuple(chat.encode(chat.render(dialogue)))
    same = engine.log[1].request.prompt_ids[: len(engine.log[0].request.prompt_ids) + len(engine.log[0].ids)]
    expected = store.interactions[0].id if same == engine.log[0].request.prompt_ids + engine.log[0].ids else None
    assert store.interactions[1].parent == expected


@pytest.mark.parametrize("sampled", ['{"a": 1, "b": 2.0}', '{"b":2,"a" : 1}'])
@pytest.mark.parametrize("written", ['{"a":1,"b":2}', '{"b": 2, "a": 1}'])
def test_a_render_shows_calls_as_they_were_sampled(session, send, engine, chat, tools, call_text, sampled, written):
    engine.replies = [call_text("add", sampled), "ok"]
    message = send(session, {"messages": [USER], "tools": tools}).json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "3"}
    past = [{"role": "system", "content": "Edited."}, USER, message, result]
    rewritten = json.loads(json.dumps(past))
    rewritten[2]["tool_calls"][0]["function"]["arguments"] = written
    send(session, {"messages": rewritten, "tools": tools})
    shown = chat.decode(engine.log[1].request.prompt_ids)
    assert "Edited." in shown
    assert call_text("add", sampled) in shown


def test_a_call_that_the_agent_changed_is_shown_as_changed(session, send, engine, chat, tools, call_text):
    engine.replies = [call_text("add", '{"a": 1}'), "ok"]
    message = send(session, {"messages": [USER], "tools": tools}).json()["choices"][0]["message"]
    message["tool_calls"][0]["function"]["arguments"] = '{"a":2}'
    send(session, {"messages": [USER, message, USER], "tools": tools})
    assert '{"a":2}' in chat.decode(engine.log[1].request.prompt_ids)


def test_history_template_goes_on_behind_calls_that_a_client_wrote_anew(
    make_gateway, open_session, send_to, engine, chat, tools, call_text
):
    gateway = make_gateway(history="template")
    session = open_session(gateway)
    engine.replies = [call_text("add", '{"a": 1}'), "ok"]
    message = send_to(gateway, session, {"messages": [USER], "tools": tools}).json()["choices"][0]["message"]
    message["tool_calls"][0]["function"]["arguments"] = '{"a":1}'
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "3"}
    send_to(gateway, session, {"messages": [USER, message, result], "tools": tools})
    before = chat.decode(engine.log[0].request.prompt_ids + engine.log[0].ids)
    assert chat.decode(engine.log[1].request.prompt_ids).startswith(before)


# --- any dialogue ------------------------------------------------------------------------------------------------

words = st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=12)
values = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6) | words
arguments = st.dictionaries(words, values | st.lists(values, max_size=2), max_size=3)
calls = st.lists(st.tuples(st.sampled_from(["add", "find"]), arguments), max_size=3)
turns = st.tuples(words, calls, st.integers(0, 3), st.booleans())
dialogues = st.lists(turns, min_size=1, max_size=5)


def spoken(content, wanted, style):
    """What the model says: content and calls, its JSON in one of several styles."""
    separators = [None, (",", ":"), (" , ", " : "), None][style]
    texts = [
        f'<tool_call>\n{{"name": "{name}", "arguments": '
        f"{json.dumps(given, separators=separators, ensure_ascii=style == 3)}}}\n</tool_call>"
        for name, given in wanted
    ]
    return "\n".join([*([content] if content else []), *texts])


def rewritten(message, style):
    """What a client keeps of a message: other whitespace, key order, null or missing content, keys of its own."""
    kept = {"role": "assistant", "content": message.content}
    if not message.content and style % 2:
        kept["content"] = "" if style == 1 else None
    if message.tool_calls:
        kept["tool_calls"] = [
            {
                "function": {
                    "arguments": json.dumps(
                        dict(reversed(json.loads(call.function.arguments).items())), indent=style or None
                    ),
                    "name": call.function.name,
                },
                "type": "function",
                "id": call.id,
                "index": 0,
            }
            for call in message.tool_calls
        ]
    return kept if style else message.model_dump()


async def converse(client, engine, dialogue, tools):
    messages = [{"role": "user", "content": "begin"}]
    for content, wanted, style, cut in dialogue:
        text = spoken(content, wanted, style)
        engine.replies = [text or "."]
        engine.version += style % 2  # as if weights had been published in between
        limit = {"max_tokens": max(len(text) // 2, 1)} if cut else {}
        reply = await client.chat.completions.create(model="default", messages=messages, tools=tools, **limit)
        message = reply.choices[0].message
        messages.append(rewritten(message, style))
        answers = [
            {"role": "tool", "tool_call_id": call.id, "content": f"{call.function.name} é 晴"}
            for call in message.tool_calls or []
        ]
        messages += answers or [{"role": "user", "content": content + "?"}]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(dialogues)
def test_any_tool_dialogue_is_one_row_of_the_engines_own_tokens(
    gateway, open_session, engine, store, chat, tools, dialogue
):
    engine.log.clear()
    store.interactions.clear()
    session = open_session(gateway)

    async def scenario():
        client = AsyncOpenAI(base_url=session.base_url, api_key="dummy", http_client=gateway.http_client, max_retries=0)
        await converse(client, engine, dialogue, tools)
        return await gateway.close_session(session)

    interactions = asyncio.run(scenario())
    assert list(interactions) == store.interactions
    assert len(interactions) == len(dialogue)
    # The engine's log is the witness: what is stored is what it saw and sampled, token by token.
    for interaction, logged in zip(interactions, engine.log, strict=True):
        assert (interaction.output_ids, interaction.logprobs) == (logged.ids, logged.logprobs)
        assert tuple(interaction.output_versions) == logged.versions
    parents = [None, *(interaction.id for interaction in interactions[:-1])]
    assert [interaction.parent for interaction in interactions] == parents
    record = Record(
        id=session.record_id, run_id="run", task_id="t", group_id="g", sample_index=0, outcome=Outcome.SCORED
    )
    episode = Episode(record=record, interactions=interactions)
    for interaction, logged in zip(interactions, engine.log, strict=True):
        assert episode.full_ids(interaction) == logged.request.prompt_ids + logged.ids
    # And the text of the prompt is what the template makes of the conversation as it was spoken.
    for interaction, logged in zip(interactions, engine.log, strict=True):
        sent = [message for one in episode.lineage(interaction) for message in (*one.messages, {"said": one})]
        assert chat.decode(logged.request.prompt_ids) == spoken_render(chat, sent[:-1], interaction.tools)


def spoken_render(chat, conversation, tools):
    """Render a conversation in which the sampled turns stand as they were spoken, by plain string work."""
    text = (
        "<|im_start|>system\n" + "".join(json.dumps(tool, ensure_ascii=False) + "\n" for tool in tools) + "<|im_end|>\n"
    )
    for message in conversation:
        if "said" in message:
            said = chat.decode(message["said"].output_ids).removesuffix("<|im_end|>")
            text += f"<|im_start|>assistant\n{said}<|im_end|>\n"
        else:
            text += f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"
    return text + "<|im_start|>assistant\n"
