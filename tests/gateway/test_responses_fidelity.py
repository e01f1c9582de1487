"""Token fidelity of the Responses API: a conversation goes on from the exact ids, however its items come back."""

import asyncio
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI

from agentrl_core.api.reasoning import THINK
from agentrl_core.chat import Chat
from agentrl_core.config.sampling_sections import UpstreamConfig
from agentrl_core.errors import RequestError
from agentrl_core.gateway.dialects.responses import OpenAIResponses
from agentrl_core.gateway.dialects.responses_input import parse_input

TOOL = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a":%d}}\n</tool_call>'
FIELDS = [
    *(
        "type",
        "role",
        "content",
        "id",
        "call_id",
        "name",
        "arguments",
        "output",
        "summary",
        "text",
        "image_url",
        "format",
    ),
    *("tools", "tool_choice", "metadata", "reasoning", "include", "mode", "instructions", "truncation", "effort"),
]
USER = {"role": "user", "content": "go on"}


@pytest.fixture(scope="module")
def chat(model_dir):
    return Chat.from_directory(model_dir, reasoning=THINK)


def run(gateway, session, scenario):
    async def talking():
        async with AsyncOpenAI(
            base_url=session.base_url, api_key=session.api_key, http_client=gateway.http_client, max_retries=0
        ) as client:
            return await scenario(client)

    return asyncio.run(talking())


@pytest.fixture
def talk_to(gateway, session):
    return lambda scenario: run(gateway, session, scenario)


def ask(client, value, **options):
    return client.responses.create(model="default", input=value, **options)


def assert_continues(earlier, later):
    known = earlier.request.prompt_ids + earlier.ids
    assert later.request.prompt_ids[: len(known)] == known


def results(response):
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": "3"}
        for item in response.output
        if item.type == "function_call"
    ]


def as_they_are(response):
    return [item.to_dict() for item in response.output]


def without_thoughts(response):
    return [item for item in as_they_are(response) if item["type"] != "reasoning"]


def without_ids(response):
    return [{key: value for key, value in item.items() if key != "id"} for item in as_they_are(response)]


def without_empty_messages(response):
    items = as_they_are(response)
    return [item for item in items if item["type"] != "message" or item["content"][0]["text"]]


def as_references(response):
    return [{"type": "item_reference", "id": item.id} for item in response.output]


def as_easy_messages(response):
    """What a person would write down."""
    items = without_ids(response)
    easy = [
        {"role": "assistant", "content": item["content"][0]["text"]} if item["type"] == "message" else item
        for item in items
    ]
    return [item for item in easy if item.get("type") != "reasoning"]


REWRITES = [as_they_are, without_thoughts, without_ids, without_empty_messages, as_references, as_easy_messages]
REPLIES = [
    f"<think>\nhm\n</think>\n\nAdding é.\n{CALL % 1}\n{CALL % 2}",
    CALL % 3,
    "<think>so</think>",
    f"<think>so</think>{CALL % 4}",
    "The sum is 3.",
]


@pytest.mark.parametrize("rewrite", REWRITES)
def test_resent_items_are_recognised(talk_to, engine, store, rewrite):
    engine.replies = [reply for reply in REPLIES if reply != "<think>so</think>" or rewrite is not without_thoughts]

    async def scenario(client):
        items = [USER]
        for _ in range(len(engine.replies)):
            response = await ask(client, items, tools=[TOOL])
            items = [*items, *rewrite(response), *results(response), USER]

    if rewrite is as_easy_messages or rewrite is without_empty_messages:
        engine.replies.remove("<think>so</think>")  # nothing of it would be left
    talk_to(scenario)
    for earlier, later in pairwise(engine.log):
        assert_continues(earlier, later)
    assert [one.parent for one in store.interactions[1:]] == [one.id for one in store.interactions[:-1]]


@pytest.mark.parametrize("stream", [False, True])
def test_a_previous_response_is_continued(talk_to, engine, store, chat, stream):
    engine.replies = list(REPLIES)

    async def create(client, value, **options):
        if not stream:
            return await ask(client, value, **options)
        events = [event async for event in await ask(client, value, stream=True, **options)]
        return events[-1].response

    async def scenario(client):
        response = await create(client, "go on", tools=[TOOL])
        for _ in REPLIES[1:]:
            value = [*results(response), USER]
            response = await create(client, value, tools=[TOOL], previous_response_id=response.id)

    talk_to(scenario)
    for earlier, later in pairwise(engine.log):
        assert_continues(earlier, later)
    assert [len(one.messages) for one in store.interactions] == [1, 3, 2, 1, 2]
    assert "Adding é." in chat.decode(engine.log[-1].request.prompt_ids)


def test_children_of_one_response_are_branches(talk_to, engine, store):
    engine.replies = ["root", "same", "same", "left", "right"]

    async def scenario(client):
        root = await ask(client, "go on")
        children = [await ask(client, "go on", previous_response_id=root.id) for _ in range(2)]
        for child in children:
            await ask(client, "and then?", previous_response_id=child.id)

    talk_to(scenario)
    ids = [one.id for one in store.interactions]
    assert [one.parent for one in store.interactions] == [None, ids[0], ids[0], ids[1], ids[2]]
    for earlier, later in (0, 1), (0, 2), (1, 3), (2, 4):
        assert_continues(engine.log[earlier], engine.log[later])


def test_instructions_hold_for_one_response_only(talk_to, engine, store, chat):
    async def scenario(client):
        first = await ask(client, "hi", instructions="Be brief.")
        second = await ask(client, "go on", instructions="Be brief.", previous_response_id=first.id)
        third = await ask(client, "go on", instructions="Be long.", previous_response_id=second.id)
        await ask(client, "go on", previous_response_id=third.id)

    talk_to(scenario)
    first = store.interactions[0]
    assert_continues(engine.log[0], engine.log[1])
    assert [one.parent for one in store.interactions] == [None, first.id, None, None]
    prompts = [chat.decode(logged.request.prompt_ids) for logged in engine.log]
    assert [prompt.count("Be brief.") for prompt in prompts] == [1, 1, 0, 0]
    assert prompts[2].startswith("<|im_start|>system\nBe long.")
    assert prompts[3].startswith("<|im_start|>user\nhi")
    assert prompts[3].count("<|im_start|>assistant\nok<|im_end|>") == 3


def test_changed_instructions_return_to_the_branch_that_they_began(talk_to, engine, store):
    async def scenario(client):
        one = await ask(client, "hi", instructions="A")
        two = await ask(client, "go on", instructions="B", previous_response_id=one.id)
        three = await ask(client, "go on", instructions="B", previous_response_id=two.id)
        await ask(client, "go on", instructions="A", previous_response_id=three.id)

    talk_to(scenario)
    ids = [one.id for one in store.interactions]
    assert [one.parent for one in store.interactions] == [None, None, ids[1], ids[0]]
    assert_continues(engine.log[1], engine.log[2])
    assert_continues(engine.log[0], engine.log[3])


def test_a_conversation_may_change_its_api(talk_to, engine, store):
    async def scenario(client):
        chat = await client.chat.completions.create(model="default", messages=[USER])
        response = await ask(client, "and?", previous_response_id=chat.id)
        messages = [USER, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "and?"}]
        messages += [{"role": "assistant", "content": response.output_text}, USER]
        await client.chat.completions.create(model="default", messages=messages)

    talk_to(scenario)
    for earlier, later in pairwise(engine.log):
        assert_continues(earlier, later)


def test_the_conversation_with_an_upstream_goes_on_by_its_ids(make_gateway, open_session, engine, monkeypatch, chat):
    other = make_gateway()
    judge = open_session(other)
    monkeypatch.setenv("JUDGE_KEY", judge.api_key)
    config = UpstreamConfig(url=f"{judge.base_url}/v1", model="default", api_key_env="JUDGE_KEY")
    gateway = make_gateway(upstreams={"judge": config})
    session = open_session(gateway)
    engine.replies = ["first", "second", "third"]

    async def scenario(client):
        first = await client.responses.create(model="judge", input="hi", instructions="Be just.")
        second = await client.responses.create(model="judge", input="go on", previous_response_id=first.id)
        await client.responses.create(model="default", input="go on", previous_response_id=second.id)
        return second, await client.responses.retrieve(second.id)

    second, kept = run(gateway, session, scenario)
    assert (kept.output, kept.model, kept.usage) == (second.output, "judge", None)
    asked = [chat.decode(logged.request.prompt_ids) for logged in engine.log]
    assert [prompt.count("Be just.") for prompt in asked] == [1, 0, 0]
    assert [prompt.count("go on") for prompt in asked] == [0, 1, 2]
    assert "assistant\nfirst<|im_end|>\n<|im_start|>user\ngo on" in asked[2]


def test_whatever_is_sent_is_parsed_or_refused():
    junk = st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
        max_leaves=8,
    )
    kinds = [*("message", "function_call", "function_call_output", "reasoning"), *("input_text", "allowed_tools")]
    items = st.dictionaries(st.sampled_from(FIELDS), junk | st.sampled_from(kinds), max_size=5)

    @settings(max_examples=150, deadline=None)
    @given(value=st.lists(items, max_size=3) | junk, extra=st.dictionaries(st.sampled_from(FIELDS), junk, max_size=3))
    def check(value, extra):
        with suppress(RequestError):
            OpenAIResponses().parse({"input": "hi", "tools": [TOOL], **extra}, {})
        with suppress(RequestError):
            request = OpenAIResponses().parse({"input": value}, {})
            assert all(isinstance(message["content"], str | list) for message in request.messages)

    check()


def test_items_of_one_generation_are_one_message():
    stem, other = "a" * 32, "b" * 32

    def call(number, identity=None):
        return {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}", "id": identity}

    def result(number):
        return {
            "type": "function_call_output",
            "call_id": f"c{number}",
            "output": [{"type": "input_text", "text": "x"}],
        }

    def message(text, identity=None):
        return {
            "type": "message",
            "role": "assistant",
            "id": identity,
            "content": [{"type": "output_text", "text": text}],
        }

    def shape(items):
        return [
            (
                one["role"],
                one.get("content"),
                one.get("reasoning_content"),
                [c["id"] for c in one.get("tool_calls", ())],
            )
            for one in parse_input(items)[0]
        ]

    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    assert shape([thought, message("a"), call(1), call(2), result(1)]) == [
        ("assistant", "a", "hm", ["c1", "c2"]),
        ("tool", "x", None, []),
    ]
    # Without ids a second message is a second turn, as are thoughts behind a call.
    assert [one[1] for one in shape([message("a"), message("b")])] == ["a", "b"]
    assert len(shape([call(1), thought, call(2)])) == 2
    # Ids of replies say more: text behind a call, calls among results, replies without a question between them.
    assert shape([message("a", f"msg_{stem}"), call(1, f"fc_{stem}_0"), message("b", f"msg_{stem}_1")]) == [
        ("assistant", "ab", None, ["c1"])
    ]
    assert [one[0] for one in shape([call(1, f"fc_{stem}_0"), result(1), call(2, f"fc_{stem}_1"), result(2)])] == [
        "assistant",
        "tool",
        "tool",
    ]
    assert len(shape([message("a", f"msg_{stem}"), call(1, f"fc_{other}_0")])) == 2


texts = st.text(st.characters(codec="utf-8", exclude_characters="<>"), max_size=12)
turns = st.fixed_dictionaries(
    {
        "thought": st.sampled_from(["", "<think>\nhm\n</think>\n\n"]),
        "text": texts,
        "calls": st.integers(0, 3),
        "how": st.sampled_from(["previous", "resent", "without ids", "streamed"]),
        "branch": st.sampled_from([None, "first", "last"]),
    }
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=st.lists(turns, min_size=2, max_size=5))
def test_any_way_of_continuing_is_exact(gateway, engine, open_session, plan):
    session, start = open_session(gateway), len(engine.log)
    replies = [
        turn["thought"] + turn["text"] + "".join(CALL % number for number in range(turn["calls"])) for turn in plan
    ]

    async def scenario(client):
        response, items, expected = None, [], []
        for index, (turn, reply) in enumerate(zip(plan, replies, strict=True)):
            new = [*(results(response) if response else ()), {"role": "user", "content": str(index)}]
            engine.replies = [reply, reply]
            options = {"tools": [TOOL]}
            if response is not None and turn["how"] in {"previous", "streamed"}:
                options |= {"previous_response_id": response.id}
                value = new
            else:
                past = (without_ids if turn["how"] == "without ids" else as_they_are)(response) if response else []
                value = [*items, *past, *new]
            twins = []
            for _ in range(2 if turn["branch"] else 1):
                expected.append((response.id if response else None, value))
                if turn["how"] == "streamed":
                    latest = [event async for event in await ask(client, value, stream=True, **options)][-1].response
                else:
                    latest = await ask(client, value, **options)
                twins.append(latest)
            following = plan[index + 1]["how"] if index + 1 < len(plan) else ""
            # Without ids nobody can tell two replies of one text apart; the later one is meant.
            first = turn["branch"] == "first" and following != "without ids"
            items = [*items, *(as_they_are(response) if response else []), *new]
            response = twins[0 if first else -1]
        return [previous for previous, _ in expected]

    parents = run(gateway, session, scenario)
    logged = {entry.request.request_id: entry for entry in engine.log[start:]}
    assert len(logged) == len(parents)
    for entry, parent in zip(logged.values(), parents, strict=True):
        if parent is not None:
            assert_continues(logged[parent], entry)
