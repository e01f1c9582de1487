"""A context policy shortens histories; the agent sends its whole history all the same, and every token stays exact."""

import asyncio
import functools
import json
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.gateway.conftest import MemoryStore, TalkingEngine, running_gateway

from agentrl_core.api.compaction import COMPACTION, compaction_of
from agentrl_core.config.sampling_sections import UpstreamConfig
from agentrl_core.errors import ConfigError
from agentrl_core.gateway.compaction import NamedPolicy, Unchanged

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "question"}
SUMMARISE = {"role": "user", "content": "Summarise."}


class Summary:
    """Replaces everything after the question by a summary once there are more than `most` messages."""

    def __init__(self, most=5):
        self.most = most
        self.usages = []
        self.fail = []

    async def compact(self, messages, usage, ask):
        self.usages.append(usage)
        if len(messages) <= self.most:
            return None
        answer = await ask([*messages, SUMMARISE], max_tokens=100)
        if self.fail:
            raise self.fail.pop()
        return [*messages[:2], {"role": "user", "content": f"Summary: {answer['content']}"}]


@pytest.fixture
def policy():
    return Summary()


@pytest.fixture
def gateway(make_gateway, policy):
    return make_gateway(context=NamedPolicy(name="summary", policy=policy))


class Agent:
    """Sends its whole history with each call."""

    def __init__(self, send, session, **fields):
        self.send, self.session, self.fields = send, session, fields
        self.messages = [SYSTEM, QUESTION]

    def reply(self, **fields):
        return self.send(self.session, {"messages": self.messages, **self.fields, **fields})

    def call(self, then="go on", **fields):
        found = self.reply(**fields)
        assert found.status_code == 200, found.text
        message = found.json()["choices"][0]["message"]
        self.messages += [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": then}]
        return message["content"]


@pytest.fixture
def agent(send, session):
    return Agent(send, session)


def texts(messages):
    return [message["content"] for message in messages]


def exact(store, engine):
    """Whether every call's ids, put together from the record, are what the engine was asked and sampled."""
    whole = {}
    for item in store.interactions:
        whole[item.id] = (*whole.get(item.parent, ()), *item.prompt_ids, *item.output_ids)
    asked = {call.request.request_id: (*call.request.prompt_ids, *call.ids) for call in engine.log}
    return whole == asked


def test_a_history_is_compacted_and_later_calls_continue_the_branch(agent, store, engine):
    engine.replies = ["one", "two", "the summary", "three", "four"]
    assert [agent.call() for _ in range(4)] == ["one", "two", "three", "four"]
    one, two, summary, three, four = store.interactions
    assert [item.parent for item in store.interactions] == [None, one.id, two.id, None, three.id]
    assert texts(three.messages) == ["Be brief.", "question", "Summary: the summary"]
    assert texts(four.messages) == ["go on"]
    assert (summary.api, summary.is_agents, three.api) == ("context", False, "chat")
    assert texts(summary.messages) == ["go on", "Summarise."]
    assert exact(store, engine)


def test_the_call_that_begins_a_branch_says_so(agent, store, engine):
    engine.replies = ["one", "two", "short", "three", "four"]
    for _ in range(4):
        agent.call()
    *before, summary, three, four = store.interactions
    note = compaction_of(three)
    assert (note.name, note.number, note.compactions, note.messages) == ("summary", 1, 1, (6, 3))
    prompt = [len(call.request.prompt_ids) for call in engine.log]
    # The question to the policy has a further message, so it is longer than the history.
    assert prompt[2] > note.tokens[0] > prompt[1]
    assert (note.tokens[1], note.context_length) == (prompt[3], engine.context_length)
    assert summary.requested[COMPACTION] == {"name": "summary"}
    assert [compaction_of(item) for item in (*before, summary, four)] == [None] * 4


def test_a_branch_is_compacted_again(agent, store, engine, policy):
    engine.replies = ["one", "two", "first summary", "three", "four", "second summary", "five", "six"]
    for _ in range(6):
        agent.call()
    *_, five, six = store.interactions
    assert texts(five.messages) == ["Be brief.", "question", "Summary: second summary"]
    assert six.parent == five.id
    assert [note.number for item in store.interactions if (note := compaction_of(item))] == [1, 2]
    assert [usage.compactions for usage in policy.usages] == [0, 0, 0, 1, 1, 2]
    assert compaction_of(five).compactions == 2
    assert exact(store, engine)


def test_the_policy_learns_the_size_of_the_prompt(agent, engine, policy):
    agent.call(max_tokens=33)
    agent.call()
    first, second = policy.usages
    assert [first.prompt_tokens, second.prompt_tokens] == [len(call.request.prompt_ids) for call in engine.log]
    assert (first.max_tokens, second.max_tokens, first.context_length) == (33, 2000, engine.context_length)
    assert (first.calls, second.calls) == (0, 1)


def test_a_repeated_call_is_not_compacted_twice(agent, store, engine):
    engine.replies = ["one", "two", "the summary", "three", "again"]
    agent.call()
    agent.call()
    assert [agent.reply().status_code, agent.reply().status_code] == [200, 200]
    *_, three, again = store.interactions
    assert len(store.interactions) == 5
    assert texts(three.messages) == texts(again.messages)
    assert compaction_of(three).number == compaction_of(again).number == 1


def test_a_repeated_call_is_not_compacted_twice_even_if_the_policy_would_do_it(agent, store, engine, policy):
    policy.most = 2  # also above it are its own results
    engine.replies = ["one", "the summary", "two", "again"]
    agent.call()
    assert [agent.reply().status_code, agent.reply().status_code] == [200, 200]
    assert [item.api for item in store.interactions] == ["chat", "context", "chat", "chat"]


def test_an_answer_is_not_asked_for_again_if_the_compaction_fails_after_it(agent, store, engine, policy):
    engine.replies = ["one", "two", "the summary", "three"]
    policy.fail = [ValueError("out of luck")]
    agent.call()
    agent.call()
    refused = agent.reply()
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["code"] == "context_policy"
    assert error["message"].startswith("context policy 'summary' raised ValueError: out of luck (")
    assert agent.call() == "three"
    assert [item.api for item in store.interactions].count("context") == 1


def test_calls_with_the_same_history_at_once_share_one_compaction(session, store, engine, talk):
    engine.replies = ["one", "two", "the summary", "three", "four"]

    async def scenario(client):
        messages = [SYSTEM, QUESTION]
        for _ in range(2):
            reply = await client.chat.completions.create(model="default", messages=messages)
            messages += [reply.choices[0].message, {"role": "user", "content": "go on"}]
        calls = [client.chat.completions.create(model="default", messages=messages) for _ in range(2)]
        return await asyncio.gather(*calls)

    found = talk(session, scenario)
    assert {reply.choices[0].message.content for reply in found} == {"three", "four"}
    assert [item.api for item in store.interactions].count("context") == 1


def test_conversations_of_one_session_do_not_mix(send, session, store, engine):
    planner, helper = Agent(send, session), Agent(send, session)
    helper.messages = [SYSTEM, {"role": "user", "content": "another question"}]
    engine.replies = ["p1", "h1", "p2", "h2", "sum p", "p3", "sum h", "h3", "p4", "h4"]
    for _ in range(4):
        planner.call()
        helper.call()
    p4, h4 = store.interactions[-2:]
    parents = {item.id: item for item in store.interactions}
    assert texts(parents[p4.parent].messages) == ["Be brief.", "question", "Summary: sum p"]
    assert texts(parents[h4.parent].messages) == ["Be brief.", "another question", "Summary: sum h"]
    assert exact(store, engine)


def test_a_streamed_call_is_compacted(agent, store, engine):
    engine.replies = ["one", "two", "the summary", "three"]
    agent.call()
    agent.call()
    reply = agent.reply(stream=True)
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events) == "three"
    assert texts(store.interactions[-1].messages)[-1] == "Summary: the summary"


def test_anthropics_messages_are_compacted(send, session, store, engine):
    engine.replies = ["one", "two", "the summary", "three", "four"]
    messages = [QUESTION]
    for _ in range(4):
        body = {"model": "m", "max_tokens": 100, "system": "Be brief.", "messages": messages}
        reply = send(session, body, path="/v1/messages").json()
        messages = [*messages, {"role": "assistant", "content": reply["content"]}, {"role": "user", "content": "go on"}]
    *_, three, four = store.interactions
    assert texts(three.messages) == ["Be brief.", "question", "Summary: the summary"]
    assert four.parent == three.id
    assert exact(store, engine)


@pytest.mark.parametrize("resend", [True, False], ids=["whole history", "previous_response_id"])
def test_responses_are_compacted(send, session, store, engine, policy, resend):
    engine.replies = ["one", "two", "the summary", "three", "four"]
    history, new, previous = [], [{"role": "user", "content": "question"}], {}
    for _ in range(4):
        body = {"model": "m", "instructions": "Be brief.", "input": [*history, *new] if resend else new, **previous}
        reply = send(session, body, path="/v1/responses").json()
        history = [*history, *new, *reply["output"]]
        new = [{"role": "user", "content": "go on"}]
        previous = {} if resend else {"previous_response_id": reply["id"]}
        assert reply["previous_response_id"] == body.get("previous_response_id")
    *_, three, four = store.interactions
    assert texts(three.messages) == ["Be brief.", "question", "Summary: the summary"]
    assert four.parent == three.id
    assert [item.api for item in store.interactions].count("context") == 1
    assert exact(store, engine)
    assert policy.usages[-1].compactions == 1


def test_large_histories_are_compacted_on_a_thread(send, session, store, engine):
    agent = Agent(send, session)
    agent.messages[1] = {"role": "user", "content": "long " * 10_000}
    engine.replies = ["one", "two", "the summary", "three", "four"]
    for _ in range(4):
        agent.call()
    assert texts(store.interactions[3].messages)[-1] == "Summary: the summary"
    assert exact(store, engine)


def test_token_level_and_raw_prompts_stay_as_they_are(send, session, store, policy):
    reply = send(session, {"model": "m", "prompt": "a b c"}, path="/v1/completions")
    assert reply.status_code == 200
    assert policy.usages == []
    assert store.interactions[0].requested.get(COMPACTION) is None


class Returns:
    def __init__(self, make):
        self.make = make

    async def compact(self, messages, usage, ask):
        return self.make(messages)


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ([], "returned no messages; expected at least one"),
        (7, "returned int; expected a list of messages"),
        (["text"], "returned str in place of a message at position 0"),
        ([{"role": "robot"}], "returned a message with the role 'robot', none of system"),
        ([{"role": "user", "content": 3}], "returned a message whose content is int, not text, at position 0"),
        ([{"role": "user", "content": "a", "x": {1}}], "returned a message that is not JSON"),
        ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], "returned a message with malformed tool_calls"),
        (
            [QUESTION, {"role": "tool", "tool_call_id": "c1", "content": "3"}],
            "returned the tool message of call 'c1' without its call",
        ),
        ([QUESTION, {"role": "user", "content": "many " * 200_000}], "prompt tokens, but the context length is 100000"),
    ],
)
def test_an_invalid_result_is_an_error_that_names_the_policy(
    make_gateway, open_session, send_to, engine, result, problem
):
    gateway = make_gateway(context=NamedPolicy(name="mine", policy=Returns(lambda _: result)))
    session = open_session(gateway)
    reply = send_to(gateway, session, {"messages": [SYSTEM, QUESTION]})
    assert reply.status_code == 400
    message = reply.json()["error"]["message"]
    assert message.startswith("context policy 'mine' ")
    assert problem in message
    assert "mine" in session.refusal
    assert not engine.log


def test_a_policy_that_changes_messages_in_place_does_not_change_the_record(make_gateway, open_session, send_to, store):
    def change(messages):
        messages[1]["content"] = "changed"

    gateway = make_gateway(context=NamedPolicy(name="mine", policy=Returns(change)))
    session = open_session(gateway)
    assert send_to(gateway, session, {"messages": [SYSTEM, QUESTION]}).status_code == 200
    assert texts(store.interactions[0].messages) == ["Be brief.", "question"]


def test_tools_stay_in_the_prompt_of_a_question_but_are_not_called(send, session, store, engine, tools, call_text):
    agent = Agent(send, session, tools=tools)
    text = call_text("add", "{}")
    engine.replies = ["one", "two", text, "three"]
    for _ in range(3):
        agent.call()
    _, two, summary, _ = store.interactions
    assert summary.parent == two.id
    assert summary.output == {"role": "assistant", "content": text}


def test_a_question_waits_while_calls_are_paused(gateway, agent, session, engine, policy):
    policy.most, begun = 1, []
    compact = policy.compact

    def resume():
        begun.append(engine.begun[0].is_set())
        gateway.resume(session)

    async def pausing(messages, usage, ask):
        gateway.pause(session)
        asyncio.get_running_loop().call_soon(resume)
        return await compact(messages, usage, ask)

    policy.compact = pausing
    assert agent.reply().status_code == 200
    assert begun == [False]


def test_the_end_of_the_episode_ends_a_question(gateway, agent, session, engine, store, policy, chat):
    policy.most = 1
    found = []
    release = threading.Event()

    def reply(_ids, _number):
        engine.begun[0].set()
        release.wait(30)
        return chat.encode("late")

    engine._replies = reply
    calling = threading.Thread(target=lambda: found.append(agent.reply().status_code))
    calling.start()
    assert engine.begun[0].wait(30)
    asyncio.run(gateway.close_session(session))
    release.set()
    calling.join(30)
    assert found == [410]
    assert store.interactions == []


def test_seeds_follow_from_the_calls_alone(make_gateway, open_session, send_to, store):
    def play():
        gateway = make_gateway(context=NamedPolicy(name="summary", policy=Summary()))
        session = open_session(gateway, seed_key=(4, 2))
        agent = Agent(lambda session, body: send_to(gateway, session, body), session)
        for _ in range(4):
            agent.call()
        asyncio.run(gateway.close_session(session))
        seeds = [(item.id, item.sampling.seed) for item in store.interactions]
        store.interactions.clear()
        return seeds

    first = play()
    assert len({seed for _, seed in first}) == 5
    assert play() == first


def test_without_a_policy_nothing_is_asked(make_gateway):
    gateway = make_gateway(context=NamedPolicy(name="none", policy=Unchanged()))
    assert gateway._answerer._compactor is None
    assert make_gateway()._answerer._compactor is None


def test_an_upstream_that_is_not_defined_is_refused_at_the_start(make_gateway):
    policy = Summary()
    policy.upstreams = ("cheap",)
    with pytest.raises(ConfigError, match=r"context: 'summary' asks the upstream 'cheap', which is not in"):
        make_gateway(context=NamedPolicy(name="summary", policy=policy))


class ByUpstream:
    upstreams = ("cheap",)

    async def compact(self, messages, usage, ask):
        answer = await ask([{"role": "user", "content": "Sum up."}], upstream="cheap", max_tokens=70)
        return [messages[0], {"role": "user", "content": answer["content"]}]


def test_an_upstream_may_answer_and_is_not_trained(chat, model_dir, make_gateway, open_session, send_to, store, engine):
    other = TalkingEngine(chat, model_dir)
    other.replies = ["by another model"]
    with running_gateway(chat, other, MemoryStore()) as provider:
        url = f"{open_session(provider).base_url}/v1"
        upstreams = {"cheap": UpstreamConfig(url=url)}
        gateway = make_gateway(context=NamedPolicy(name="mine", policy=ByUpstream()), upstreams=upstreams)
        session = open_session(gateway)
        assert send_to(gateway, session, {"messages": [SYSTEM, QUESTION]}).status_code == 200
    summary, call = store.interactions
    assert (summary.api, summary.upstream, summary.trainable) == ("context", "cheap", False)
    assert summary.requested[COMPACTION] == {"name": "mine"}
    assert texts(call.messages) == ["Be brief.", "by another model"]
    assert other.log[0].request.sampling.max_tokens == 70


def test_a_call_to_an_upstream_is_not_compacted(chat, model_dir, make_gateway, open_session, send_to, store, policy):
    with running_gateway(chat, TalkingEngine(chat, model_dir), MemoryStore()) as provider:
        upstreams = {"cheap": UpstreamConfig(url=f"{open_session(provider).base_url}/v1")}
        gateway = make_gateway(context=NamedPolicy(name="summary", policy=policy), upstreams=upstreams)
        session = open_session(gateway)
        assert send_to(gateway, session, {"model": "cheap", "messages": [SYSTEM, QUESTION]}).status_code == 200
    assert policy.usages == []


@st.composite
def plays(draw):
    """Draw the actions of agents in one session, each as (conversation, action)."""
    actions = st.sampled_from(["call", "call", "call", "again", "fork"])
    return draw(st.lists(st.tuples(st.integers(0, 2), actions), min_size=4, max_size=16))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=plays(), most=st.integers(3, 7))
def test_every_play_is_recorded_exactly(chat, model_dir, open_session, send_to, steps, most):
    """Conversations that go on, repeat a call or go back and say something else: ids as sampled, histories valid."""
    engine, store = TalkingEngine(chat, model_dir), MemoryStore()
    with running_gateway(chat, engine, store, context=NamedPolicy(name="summary", policy=Summary(most))) as gateway:
        session = open_session(gateway)
        agents = [Agent(functools.partial(send_to, gateway), session) for _ in range(3)]
        for number, agent in enumerate(agents):
            agent.messages = [SYSTEM, {"role": "user", "content": f"question {number}"}]
        for number, (place, action) in enumerate(steps):
            agent = agents[place]
            if action == "again":
                agent.reply()
            if action == "fork" and len(agent.messages) > 2:
                agent.messages[-1:] = [{"role": "user", "content": f"rather {number}"}]
            agent.call(then=f"go on {number}")
    assert exact(store, engine)
    parents = {item.id: item for item in store.interactions}
    for item in store.interactions:
        whole, node = list(item.messages), item
        while node.parent is not None:
            node = parents[node.parent]
            whole[:0] = [*node.messages, node.output]
        assert whole[0] == SYSTEM
        # Nobody sees the question of another conversation, and agents' calls never have a history above the limit.
        assert len({text for text in texts(whole) if str(text).startswith("question")}) == 1
        assert len(whole) <= most + (not item.is_agents) * len(steps) * 2
