"""Token fidelity over Anthropic's API: what its clients drop, mark and rewrite changes no sampled token."""

import asyncio
import json
import time
from itertools import pairwise

import pytest
from anthropic import AsyncAnthropic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage

from agentrl_core.api.reasoning import REASONING_FORMATS
from agentrl_core.chat import Chat
from agentrl_core.gateway.dialects.anthropic_messages import AnthropicMessages

USER = {"role": "user", "content": "hello"}
ADD = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {"a": {}}}}
FIND = {"name": "find", "description": "Finds.", "input_schema": {"type": "object"}}
MARK = {"type": "ephemeral"}


@pytest.fixture(scope="module")
def chat(model_dir):
    return Chat.from_directory(model_dir, reasoning=REASONING_FORMATS["think"])


def assert_one_chain(engine, store, turns):
    """Every prompt begins with the exact prompt and output of the call before."""
    assert len(engine.log) == len(store.interactions) == turns
    parents = [None, *(interaction.id for interaction in store.interactions[:-1])]
    assert [interaction.parent for interaction in store.interactions] == parents
    for interaction, logged in zip(store.interactions, engine.log, strict=True):
        assert (interaction.output_ids, interaction.logprobs) == (logged.ids, logged.logprobs)
    for earlier, later in pairwise(engine.log):
        known = earlier.request.prompt_ids + earlier.ids
        assert later.request.prompt_ids[: len(known)] == known


@pytest.fixture
def post(session, send):
    def run(messages, **fields):
        body = {"model": "default", "max_tokens": 500, "messages": messages, **fields}
        reply = send(session, body, path="/v1/messages")
        assert reply.status_code == 200, reply.text
        return reply.json()

    return run


def answers(content, **more):
    return [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "3", **more}
        for block in content
        if block["type"] == "tool_use"
    ]


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda content: [block for block in content if block["type"] != "thinking"],
        lambda content: [{**block, "cache_control": MARK} for block in content],
        lambda content: [{**block, "id": "toolu_1"} if "id" in block else block for block in content],
        lambda content: [{"type": "redacted_thinking", "data": "x"}, *content[1:]],
        lambda content: [*content, {"type": "text", "text": ""}],
        lambda content: [{**block, "text": " Well. "} if "text" in block else block for block in content],
        lambda content: [{**block, "input": {"b": "é", "a": 1}} if "input" in block else block for block in content],
    ],
)
def test_calls_are_recognised_however_they_come_back(post, engine, store, call_text, rewrite):
    engine.replies = ["<think>\nhm\n</think>\n\nWell.\n" + call_text("add", '{"a":1.0,  "b":"\\u00e9"}'), "3"]
    content = rewrite(post([USER], tools=[ADD])["content"])
    post([USER, {"role": "assistant", "content": content}, {"role": "user", "content": answers(content)}], tools=[ADD])
    assert_one_chain(engine, store, 2)


def test_a_turn_in_several_messages_is_one(post, engine, store, call_text):
    engine.replies = ["<think>hm</think>Well.\n" + call_text("add", "{}"), "3"]
    content = post([USER], tools=[ADD])["content"]
    split = [{"role": "assistant", "content": [block]} for block in content]
    post([USER, *split, {"role": "user", "content": answers(content)}], tools=[ADD])
    assert_one_chain(engine, store, 2)


@pytest.mark.parametrize("reply", ["", "  ", "<think>only this</think>", "<tool_call>{oops</tool_call>"])
def test_odd_replies_are_gone_on_from(post, engine, store, reply):
    engine.replies = [reply, "ok"]
    content = post([USER], tools=[ADD])["content"]
    post([USER, {"role": "assistant", "content": content}, USER], tools=[ADD])
    assert_one_chain(engine, store, 2)


def test_marks_that_move_between_turns_change_nothing(post, engine, store, chat):
    engine.replies = ["a", "b"]
    system = {"type": "text", "text": "Be brief."}
    content = post(
        [{"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": MARK}]}],
        system=[{**system, "cache_control": MARK}],
        tools=[{**ADD, "cache_control": MARK}],
    )["content"]
    post([USER, {"role": "assistant", "content": content}, USER], system="Be brief.", tools=[ADD])
    assert_one_chain(engine, store, 2)


def test_equal_replies_are_told_apart_by_calls_and_thoughts(post, engine, store, call_text):
    engine.replies = [call_text("add", "{}")] * 2 + ["<think>a</think>x", "<think>b</think>x"]
    calls = [post([USER], tools=[ADD])["content"] for _ in range(2)]
    thoughts = [post([USER])["content"] for _ in range(2)]
    for content in calls:
        after = [USER, {"role": "assistant", "content": content}, {"role": "user", "content": answers(content)}]
        post(after, tools=[ADD])
    for content in thoughts:
        post([USER, {"role": "assistant", "content": content}, USER])
    ids = [one.id for one in store.interactions]
    assert [one.parent for one in store.interactions[4:]] == ids[:4]


def test_the_prompt_is_the_one_that_openais_dialect_makes(post, session, send, engine, call_text):
    system = {"role": "system", "content": "Be brief."}
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
    function = {"name": "add", "description": "Adds.", "parameters": ADD["input_schema"]}
    openai = [
        system,
        USER,
        {"role": "assistant", "content": "Well.", "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "c"},
        USER,
    ]
    send(session, {"messages": openai, "tools": [{"type": "function", "function": function}]})
    use = {"type": "tool_use", "id": "c", "name": "add", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "1"}]}
    anthropic = [
        USER,
        {"role": "assistant", "content": [{"type": "text", "text": "Well."}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "hello"}]},
    ]
    post(anthropic, system="Be brief.", tools=[ADD])
    first, second = engine.log
    assert first.request.prompt_ids == second.request.prompt_ids


def test_a_conversation_of_a_hundred_turns_is_one_chain(post, engine, store):
    engine.replies = [str(n) for n in range(100)]
    messages = [USER]
    for _ in range(100):
        messages += [{"role": "assistant", "content": post(messages)["content"]}, USER]
    assert_one_chain(engine, store, 100)


def test_a_long_conversation_is_read_cheaply():
    messages = [USER]
    for number in range(100):
        use = {"type": "tool_use", "id": f"c{number}", "name": "add", "input": {"a": [number, "é" * 100]}}
        blocks = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "x" * 300}, use]
        messages += [{"role": "assistant", "content": blocks}, {"role": "user", "content": answers(blocks)}]
    body = {"max_tokens": 5, "messages": messages, "tools": [ADD]}
    spent = []
    for _ in range(5):
        begun = time.process_time()
        AnthropicMessages().parse(body, {})
        spent.append(time.process_time() - begun)
    assert min(spent) < 0.02  # measured: 1 ms


# --- any dialogue ------------------------------------------------------------------------------------------------

words = st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(-(10**20), 10**20) | st.floats(-1e25, 1e25) | st.sampled_from([-0.0, 1.0, 1e21, 5e-324, 0.1])
values = st.none() | st.booleans() | numbers | words
arguments = st.dictionaries(words, values | st.lists(values, max_size=2), max_size=3)
calls = st.lists(st.tuples(st.sampled_from(["add", "find"]), arguments), max_size=3)
turns = st.tuples(words, words, calls, st.integers(0, 3), st.integers(0, 4))
dialogues = st.lists(turns, min_size=1, max_size=5)


def spoken(thought, content, wanted, style):
    """What the model says: thought, content and calls, its JSON in one of several styles."""
    separators = [None, (",", ":"), (" , ", " : "), None][style]
    texts = [
        f'<tool_call>\n{{"name": "{name}", "arguments": '
        f"{json.dumps(given, separators=separators, ensure_ascii=style == 3)}}}\n</tool_call>"
        for name, given in wanted
    ]
    said = "\n".join([*([content] if content else []), *texts])
    return f"<think>\n{thought}\n</think>\n\n{said}" if thought else said


def rewritten(content, style):
    """What a client keeps of a reply: without thoughts, with marks, keys in another order, numbers as JavaScript's."""
    if style == 0:
        return content
    kept = []
    for block in (block.to_dict() for block in content):
        if block["type"] == "thinking" and style % 2:
            continue
        if block["type"] == "tool_use":
            block["input"] = dict(reversed(block["input"].items()))
            if style > 2:
                block["input"] = as_javascript(block["input"])
        kept.append({**block, "cache_control": MARK} if style == 2 else block)
    return kept


def as_javascript(value):
    if isinstance(value, dict):
        return {key: as_javascript(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_javascript(item) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
        return int(number) if number.is_integer() and abs(number) < 1e21 else number
    return value


async def converse(client, engine, dialogue):
    messages = [{"role": "user", "content": "begin"}]
    for thought, content, wanted, style, keeping in dialogue:
        engine.replies.append(spoken(thought, content, wanted, style))
        request = {"model": "default", "max_tokens": 4000, "messages": messages, "tools": [ADD, FIND]}
        if style % 2:
            async with client.messages.stream(**request) as stream:
                reply = await stream.get_final_message()
        else:
            reply = await client.messages.create(**request)
        assert [(block.name, block.input) for block in reply.content if block.type == "tool_use"] == wanted
        messages.append({"role": "assistant", "content": rewritten(reply.content, keeping)})
        results = answers([block.to_dict() for block in reply.content])
        more = [{"type": "text", "text": content + "?"}]
        messages.append({"role": "user", "content": [*results, *more] if keeping > 1 or not results else results})


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(dialogues)
def test_any_dialogue_is_one_row_of_the_engines_own_tokens(gateway, open_session, engine, store, dialogue):
    engine.log.clear()
    store.interactions.clear()
    session = open_session(gateway)

    async def scenario():
        client = AsyncAnthropic(
            base_url=session.base_url, api_key="dummy", http_client=gateway.http_client, max_retries=0
        )
        await converse(client, engine, dialogue)

    asyncio.run(scenario())
    assert_one_chain(engine, store, len(dialogue))


# --- LangChain ---------------------------------------------------------------------------------------------------


async def answer_of(model, how, messages):
    """What LangChain makes of a reply, by either of its ways, on either of its clients."""
    if how == "invoke":
        return model.invoke(messages)
    if how == "ainvoke":
        return await model.ainvoke(messages)
    chunks = list(model.stream(messages)) if how == "stream" else [chunk async for chunk in model.astream(messages)]
    return sum(chunks[1:], start=chunks[0])


@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream"])
def test_langchain_keeps_the_tokens(session, engine, store, call_text, how):
    engine.replies = [
        "<think>\nboth\n</think>\n\nAdding é.\n" + call_text("add", '{"b":2,"a":1.0}') + call_text("find", "{}"),
        call_text("add", '{"a": {"x": [1]}}'),
        "plain  ",
        "<think>\nhm\n</think>\n\ndone",
    ]
    model = ChatAnthropic(model="default", base_url=session.base_url, api_key="x", max_tokens=900, max_retries=0)

    async def scenario():
        messages, replies = [SystemMessage("Be brief."), HumanMessage("hello")], []
        for _ in range(4):
            reply = await answer_of(model.bind_tools([ADD, FIND]), how, messages)
            results = [ToolMessage("3 é", tool_call_id=call["id"]) for call in reply.tool_calls]
            messages += [reply, *results, HumanMessage("and?")]
            replies.append(reply)
        return replies

    replies = asyncio.run(scenario())
    assert_one_chain(engine, store, 4)
    calls = [[call["args"] for call in reply.tool_calls] for reply in replies]
    assert calls == [[{"b": 2, "a": 1.0}, {}], [{"a": {"x": [1]}}], [], []]
    for reply, logged in zip(replies, engine.log, strict=True):
        assert reply.usage_metadata["input_tokens"] == len(logged.request.prompt_ids)
        assert reply.usage_metadata["output_tokens"] == len(logged.ids)
    if "invoke" in how:  # of a stream, LangChain keeps no id
        assert [reply.response_metadata["id"] for reply in replies] == [one.id for one in store.interactions]
