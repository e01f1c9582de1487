"""Agents and frameworks write the ids of replies and tool calls into prompts: runs of equal seed have equal ones."""

import asyncio
import json

import pytest
from tests.gateway.conftest import MemoryStore, TalkingEngine, opened, running_gateway

from agentrl_core.config.sampling_sections import UpstreamConfig
from agentrl_core.types import Record

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
TWO_CALLS = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>' * 2


async def post(gateway, session, path, body):
    headers = {"x-api-key": session.api_key}
    reply = await gateway.http_client.post(f"{session.base_url}/v1/{path}", json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def write_ids_into_prompts(gateway, session, **fields):
    """An agent that quotes the whole of each reply, ids and all, by each API in turn; every text that it sent."""
    sent = ["hello"]
    for _ in range(2):
        user = {"role": "user", "content": sent[-1]}
        chat = {"messages": [user], "tools": [ADD], "n": 2, **fields}
        reply = await post(gateway, session, "chat/completions", chat)
        sent.append(json.dumps([reply["id"], reply["choices"]]))
        reply = await post(gateway, session, "responses", {"input": sent[-1], **fields})
        sent.append(json.dumps([reply["id"], reply["output"]]))
        body = {"messages": [user], "max_tokens": 99, "model": "default", **fields}
        reply = await post(gateway, session, "messages", body)
        sent.append(json.dumps([reply["id"], reply["content"]]))
    return sent


def play(chat, model_dir, agent, *, run="run", seed_key=(0, 1), **config):
    """Let an agent make a session's calls on a gateway of their own; what it returns, and the prompts' token ids."""
    engine = TalkingEngine(chat, model_dir)
    engine.replies = [TWO_CALLS] * 20
    with running_gateway(chat, engine, MemoryStore(), **config) as gateway:
        record = Record(id=f"record-of-{run}", run_id=run, task_id="t", group_id=run, sample_index=0)
        session = opened(gateway, record, seed_key=seed_key)
        said = asyncio.run(agent(gateway, session))
    return said, sorted(call.request.prompt_ids for call in engine.log)


def test_an_agent_that_prints_ids_sends_the_same_prompts_in_every_run(chat, model_dir):
    first = play(chat, model_dir, write_ids_into_prompts, run="first")
    second = play(chat, model_dir, write_ids_into_prompts, run="second")
    assert first == second
    other, _ = play(chat, model_dir, write_ids_into_prompts, seed_key=(0, 2))
    assert other[1:] != first[0][1:]


def test_no_id_comes_twice_in_a_session(chat, model_dir):
    async def agent(gateway, session):
        body = {"messages": [{"role": "user", "content": "add"}], "tools": [ADD], "n": 3}
        return await asyncio.gather(*[post(gateway, session, "chat/completions", body) for _ in range(3)])

    replies, _ = play(chat, model_dir, agent)
    calls = [call["id"] for reply in replies for choice in reply["choices"] for call in choice["message"]["tool_calls"]]
    assert len(calls) == 3 * 3 * 2
    assert len({*calls, *(reply["id"] for reply in replies)}) == len(calls) + len(replies)


def test_sessions_of_one_seed_key_do_not_share_ids_while_both_are_open(gateway, open_session):
    async def ask(session):
        return await post(gateway, session, "chat/completions", {"messages": [{"role": "user", "content": "hi"}]})

    async def both():
        one, other = (open_session(gateway, seed_key=(5,)) for _ in range(2))
        replies = await asyncio.gather(ask(one), ask(other))
        await gateway.close_session(one)
        again = await ask(open_session(gateway, seed_key=(5,)))
        return [reply["id"] for reply in replies], again["id"]

    (one, other), again = asyncio.run(both())
    assert one != other
    assert again == one


@pytest.fixture
def provider(chat, model_dir, open_session, monkeypatch):
    engine = TalkingEngine(chat, model_dir)
    with running_gateway(chat, engine, MemoryStore()) as gateway:
        monkeypatch.setenv("JUDGE_KEY", open_session(gateway).api_key)
        yield gateway


def test_replies_of_upstreams_have_the_same_ids_in_every_run(chat, model_dir, provider):
    judge = UpstreamConfig(url=f"{provider.url}/v1", model="judge-large", api_key_env="JUDGE_KEY")

    async def agent(gateway, session):
        body = {"model": "judge", "messages": [{"role": "user", "content": "good?"}]}
        return [(await post(gateway, session, "chat/completions", body))["id"] for _ in range(3)]

    first, second = (play(chat, model_dir, agent, run=run, upstreams={"judge": judge})[0] for run in ("a", "b"))
    assert first == second
    assert len(set(first)) == len(first)


def test_a_restarted_gateway_gives_no_id_of_a_forwarded_reply_again(online, provider):
    judge = UpstreamConfig(url=f"{provider.url}/v1", model="judge-large", api_key_env="JUDGE_KEY")
    rest, again = online(upstreams={"judge": judge}), online(upstreams={"judge": judge})

    async def ask(client, key):
        return (await client.chat(key, "good?", model="judge")).json()["id"]

    async def both():
        key = (await rest.start())["api_key"]
        before = [await ask(rest, key) for _ in range(2)]
        await again.gateway.restore_sessions()
        return [*before, await ask(again, key)]

    assert len(set(asyncio.run(both()))) == 3
