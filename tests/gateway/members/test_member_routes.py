"""Routes of sampling members: who may use them, what may be repeated, and that nothing changes on the way."""

import asyncio
import math
import struct
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.conftest import ADMIN, Rest, running_gateway

from agentrl_core.gateway.call_types import ChatRequest
from agentrl_core.gateway.dialects.fields import Fields
from agentrl_core.gateway.members.wire import (
    GENERATE_REQUEST,
    interaction_from,
    interaction_to,
    pack,
    token_call_from,
    token_call_to,
)
from agentrl_core.gateway.serving.web import decode_body, json_response
from agentrl_core.types import FinishReason, Grammar, Interaction, Sampling

OPEN = {"run_id": "run", "member_id": "sampler", "record_id": "r", "group_id": "g", "seed_key": [0, 1]}


@pytest.fixture
def member(chat, engine, store):
    """Make requests as a sampling member does."""
    with ExitStack() as stack:

        def make(**config):
            rest = Rest(stack.enter_context(running_gateway(chat, engine, store, admin_key=ADMIN, **config)))

            def ask(route, body=None, *, key=ADMIN, method="POST"):
                reply = asyncio.run(rest.post(f"/rl/members/{route}", body, key=key, method=method))
                return reply.status_code, reply.json()

            return rest, ask

        yield make


@pytest.mark.parametrize("route", ["open_session", "close_session", "status", "tokenizer"])
def test_only_the_admin_key_opens_and_closes_sessions(route, member):
    rest, ask = member()
    method = "GET" if route in {"status", "tokenizer"} else "POST"
    _, opened = ask("open_session", OPEN)
    assert ask(route, OPEN, key="another-key-of-16", method=method)[0] == 403
    # The key of a session is known to its agent, who must not close others.
    assert ask(route, OPEN, key=opened["api_key"], method=method)[0] == 403
    assert (
        asyncio.run(rest.gateway.http_client.request(method, f"{rest.gateway.url}/rl/members/{route}")).status_code
        == 401
    )
    assert ask(route, OPEN, method=method)[0] == 200


def test_only_a_sessions_own_key_samples(member):
    _, ask = member()
    opened, body = ask("open_session", OPEN)[1], {"prompt_ids": pack("i", [1, 2, 3])}
    assert ask("generate", body)[0] == 401
    status, reply = ask("generate", body, key=opened["api_key"])
    assert status == 200
    assert interaction_from(reply["interaction"]).prompt_ids == (1, 2, 3)
    ask("close_session", {"record_id": "r"})
    assert ask("generate", body, key=opened["api_key"])[0] == 410


def test_a_close_may_be_repeated(member, store):
    _, ask = member()
    opened = ask("open_session", OPEN)[1]
    ask("generate", {"prompt_ids": pack("i", [1, 2, 3])}, key=opened["api_key"])
    first, second = ask("close_session", {"record_id": "r"}), ask("close_session", {"record_id": "r"})
    assert first == second
    assert list(map(interaction_from, first[1]["interactions"])) == store.interactions
    assert len(store.interactions) == 1
    assert ask("open_session", OPEN)[1]["error"]["code"] == "session_ended"
    assert ask("close_session", {"record_id": "other"})[1]["error"]["code"] == "unknown_session"


def test_a_close_goes_on_without_its_client(member, store):
    """The client gave up while a call was being stored; it asks again, and gets everything."""
    rest, ask = member()
    opened = ask("open_session", OPEN)[1]

    async def scenario():
        store.gate = asyncio.Event()
        call = asyncio.ensure_future(
            rest.post("/rl/members/generate", {"prompt_ids": pack("i", [1])}, key=opened["api_key"])
        )
        await asyncio.to_thread(store.writing.wait, 10)
        closing = asyncio.ensure_future(rest.post("/rl/members/close_session", {"record_id": "r"}))
        again = asyncio.ensure_future(rest.post("/rl/members/close_session", {"record_id": "r"}))
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing})
        store.gate.set()
        await call
        return (await again).json()

    assert len(asyncio.run(scenario())["interactions"]) == 1
    assert rest.gateway.member_sessions == 0


def test_a_close_tells_the_last_refusal(member):
    rest, ask = member()
    opened = ask("open_session", OPEN)[1]
    assert asyncio.run(rest.post("/v1/chat/completions", {"messages": []}, key=opened["api_key"])).status_code == 400
    for _ in range(2):
        assert ask("close_session", {"record_id": "r"})[1]["refusal"].startswith("400 ")


def test_the_address_is_the_public_one(member):
    _, ask = member(public_url="https://rl.example.com/")
    assert ask("open_session", OPEN)[1]["base_url"].startswith("https://rl.example.com/s/")


def test_a_run_without_an_admin_key_serves_no_members(chat, engine, store):
    with running_gateway(chat, engine, store) as gateway:
        url, headers = f"{gateway.url}/rl/members/status", {"authorization": "Bearer None"}
        assert asyncio.run(gateway.http_client.get(url, headers=headers)).status_code == 403


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"seed_key": [-1]}, "seed_key"),
        ({"seed_key": [True]}, "seed_key"),
        ({"seed_key": "x"}, "seed_key"),
        ({"record_id": None}, "record_id"),
        ({"group_id": "g" * 201}, "group_id"),
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"is_eval": 1}, "is_eval"),
    ],
)
def test_a_wrong_field_is_named(change, param, member):
    _, ask = member()
    status, reply = ask("open_session", OPEN | change)
    assert (status, reply["error"]["param"]) == (400, param)


@pytest.mark.parametrize("packed", ["", "x", "AQAA", "/////w==", 7])
def test_a_wrong_prompt_is_named(packed, member):
    _, ask = member()
    opened = ask("open_session", OPEN)[1]
    status, reply = ask("generate", {"prompt_ids": packed}, key=opened["api_key"])
    assert (status, reply["error"]["param"]) == (400, "prompt_ids")


def test_a_server_whose_engine_failed_says_so(member, engine):
    _, ask = member()
    opened = ask("open_session", OPEN)[1]
    engine.close()
    assert ask("generate", {"prompt_ids": pack("i", [1])}, key=opened["api_key"])[0] == 500
    for route, body, method in [("open_session", OPEN, "POST"), ("status", None, "GET")]:
        assert ask(route, body, method=method)[1]["error"]["code"] == "server_failed"
    # A record must not be scored by what a broken engine sampled.
    assert ask("close_session", {"record_id": "r"})[0] == 503


ids = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
texts = st.text(max_size=5)
numbers = st.floats(allow_nan=False)
samplings = st.builds(
    Sampling,
    temperature=st.floats(0, 2),
    max_tokens=st.none() | st.integers(1, 9),
    stop=st.lists(texts, max_size=2).map(tuple),
    stop_token_ids=ids,
    grammar=st.none() | st.builds(Grammar, kind=st.sampled_from(["regex", "json_object"]), value=texts),
)
messages = st.fixed_dictionaries({"role": texts, "content": st.none() | texts})
interactions = st.builds(
    Interaction,
    id=texts,
    record_id=texts,
    seq=st.integers(0, 9),
    parent=st.none() | texts,
    prompt_ids=ids,
    output_ids=ids,
    logprobs=st.lists(numbers, max_size=5).map(tuple),
    versions=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=2).map(tuple),
    messages=st.lists(messages, max_size=2).map(tuple),
    output=messages,
    tools=st.lists(st.dictionaries(texts, texts, max_size=2), max_size=2).map(tuple),
    sampling=samplings,
    requested=st.dictionaries(texts, st.integers(0, 9), max_size=2),
    finish_reason=st.sampled_from(FinishReason),
    trainable=st.booleans(),
    started_at=st.floats(0, 1e10),
)


@given(interactions)
def test_an_interaction_is_the_same_on_the_other_side(interaction):
    assert interaction_from(decode_body(json_response(interaction_to(interaction)).body)) == interaction


def test_logprobs_that_json_lacks_arrive():
    sent = interaction_to(Interaction(**BARE, logprobs=(-math.inf, math.nan)))
    least, none = interaction_from(decode_body(json_response(sent).body)).logprobs
    assert (least, struct.pack("d", none)) == (-math.inf, struct.pack("d", math.nan))


BARE = {
    "id": "i", "record_id": "r", "seq": 0, "prompt_ids": (), "output_ids": (), "versions": (), "messages": (),
    "output": {},
}  # fmt: skip


@given(
    st.builds(
        ChatRequest,
        api=st.just("completions"),
        prompts=ids.filter(bool).map(lambda prompt: (prompt,)),
        temperature=st.none() | st.floats(0, 100),
        top_p=st.none() | st.floats(0.01, 1),
        top_k=st.none() | st.integers(1, 9),
        max_tokens=st.none() | st.integers(1, 9),
        min_tokens=st.none() | st.integers(0, 9),
        stop=st.lists(st.text(min_size=1, max_size=3), max_size=2).map(tuple),
        stop_token_ids=ids,
        ignore_eos=st.booleans(),
        trainable=st.booleans(),
        ignored=st.dictionaries(texts, numbers, max_size=2).filter(
            lambda found: all(map(math.isfinite, found.values()))
        ),
    )
)
def test_a_call_on_token_ids_is_the_same_on_the_other_side(request_):
    body = decode_body(json_response(token_call_to(request_)).body)
    assert token_call_from(Fields(body, GENERATE_REQUEST)) == request_
