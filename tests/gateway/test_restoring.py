"""Sessions outlive the process that opened them: the next one goes on from their exact ids."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys

import pytest
from openai import AsyncOpenAI

from agentrl_core.gateway.sampling_parameters import call_seed
from agentrl_core.types import Outcome

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def follows(later, earlier):
    """Whether one generation's prompt begins with all that another one saw and said."""
    past = (*earlier.request.prompt_ids, *earlier.ids)
    return later.request.prompt_ids[: len(past)] == past


@pytest.fixture
def restart(online):
    """Another gateway on the same store, as after a crash: nobody has closed the first one's sessions."""

    def make(**config):
        rest = online(**config)
        return rest, asyncio.run(rest.gateway.restore_sessions())

    return make


def test_a_conversation_goes_on_from_exact_ids(rest, restart, engine, database):
    engine.replies = ["one", "two", "three"]

    async def before():
        opened = await rest.start("math-7", api_key="my-agent-key-0001")
        await rest.chat(opened["api_key"], "hello")
        await rest.chat(opened["api_key"], "hello", "one", "go on")
        return opened

    opened = asyncio.run(before())
    again, num_open = restart()

    async def after():
        key = opened["api_key"]
        reply = await again.chat(key, "hello", "one", "go on", "two", "and on")
        ended = await again.post("/rl/end_session", key=key)
        await again.post("/rl/set_reward", {"reward": 1}, key=key)
        exported = await again.post("/export_trajectories", {"session_id": opened["session_id"], "discount": 0.5})
        return reply.json(), ended.json(), exported.json()["interactions"]

    reply, ended, rows = asyncio.run(after())
    assert num_open == 1
    assert follows(engine.log[2], engine.log[1])
    assert ended == {"interaction_count": 3}
    assert [row["reward"] for row in rows.values()] == [0.25, 0.5, 1.0]
    episode = asyncio.run(database.episode(opened["session_id"]))
    assert [item.seq for item in episode.interactions] == [0, 1, 2]
    assert episode.interactions[2].id == reply["id"]
    assert episode.interactions[2].parent == episode.interactions[1].id


@pytest.mark.parametrize("name", [None, "my-call-1"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_reply_that_was_stored_before_is_given_by_its_name_only(rest, restart, engine, database, name, count):
    """Whether it was sent, nobody knows any more: a retry without a name may be that of another request."""
    engine.replies = ["one", "two", "three"]
    body = {"messages": [{"role": "user", "content": "hello"}], "n": count, "return_token_ids": True}
    named = {} if name is None else {"idempotency-key": name}

    async def ask(rest, key, retries, **more):
        headers = {"authorization": f"Bearer {key}", "x-stainless-retry-count": str(retries), **named}
        url = f"{rest.gateway.url}/v1/chat/completions"
        reply = await rest.gateway.http_client.post(url, json={**body, **more}, headers=headers)
        return reply.json()

    async def before():
        key = (await rest.start("math-7", api_key="my-agent-key-0001"))["api_key"]
        return key, await ask(rest, key, 0)

    key, missed = asyncio.run(before())
    again, _ = restart()
    told = asyncio.run(ask(again, key, 1))
    assert (told == missed) is (name is not None)
    assert len(engine.log) == (count if name else 2 * count)
    stored = asyncio.run(database.episode(missed_record(again, key))).interactions
    assert len(stored) == len(engine.log)
    assert "my-call" not in repr(stored)


def missed_record(rest, key):
    return rest.gateway._sessions.authorize_online({"x-api-key": key}).record_id


def test_seeds_go_on_where_they_stood(rest, restart, engine):
    """A call that never got its reply has used up its seed: the third one is the third in any process."""

    async def calls(rest, key, count):
        for _ in range(count):
            await rest.chat(key, "hello")

    async def one_is_lost(key):
        await engine.pause()
        running = asyncio.create_task(rest.chat(key, "lost"))
        await asyncio.to_thread(engine.begun[0].wait, 5)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await engine.resume()
        await calls(rest, key, 1)

    key = asyncio.run(rest.start())["api_key"]
    seed_key = rest.gateway._sessions.find_by_key(key).seed_key
    asyncio.run(one_is_lost(key))
    again, _ = restart()
    asyncio.run(calls(again, key, 2))
    seeds = [said.request.sampling.seed for said in engine.log]
    assert seeds == [call_seed(7, *seed_key, number) for number in range(4)]


def test_calls_of_tools_are_recognised_though_the_client_has_renamed_them(rest, restart, engine, call_text):
    engine.replies = [call_text("weather", '{"a": 1}') + call_text("weather", '{"a": 2}'), "assistant", "bye"]
    question = {"role": "user", "content": "hello"}

    def turns(first):
        calls = [{**call, "id": f"renamed-{i}"} for i, call in enumerate(first["tool_calls"])]
        results = [{"role": "tool", "tool_call_id": f"renamed-{i}", "content": f"{i}"} for i in range(2)]
        return [question, {"role": "assistant", "tool_calls": calls}, *results]

    async def send(rest, key, messages):
        reply = await rest.post("/v1/chat/completions", {"messages": messages, "tools": [WEATHER]}, key=key)
        return reply.json()["choices"][0]["message"]

    async def before():
        key = (await rest.start())["api_key"]
        first = await send(rest, key, [question])
        await send(rest, key, turns(first))
        return key, first

    key, first = asyncio.run(before())
    again, _ = restart()
    bye = {"role": "user", "content": "thanks"}
    asyncio.run(send(again, key, [*turns(first), {"role": "assistant", "content": "assistant"}, bye]))
    assert follows(engine.log[1], engine.log[0])
    assert follows(engine.log[2], engine.log[1])


def test_responses_and_raw_prompts_go_on_too(rest, restart, engine):
    engine.replies = ["one", "two", "three", "four"]

    async def before():
        key = (await rest.start())["api_key"]
        response = await rest.post("/v1/responses", {"input": "hello"}, key=key)
        text = "Once upon a time"
        raw = await rest.post("/v1/completions", {"prompt": text, "return_token_ids": True}, key=key)
        return key, response.json()["id"], raw.status_code

    key, response_id, raw_status = asyncio.run(before())
    again, _ = restart()

    async def after():
        asked = {"input": "go on", "previous_response_id": response_id}
        response = await again.post("/v1/responses", asked, key=key)
        raw_ids = [*engine.log[1].request.prompt_ids, *engine.log[1].ids, 65, 66]
        raw = await again.post("/v1/completions", {"prompt": raw_ids}, key=key)
        return response.status_code, raw.status_code

    assert (raw_status, asyncio.run(after())) == (200, (200, 200))
    assert follows(engine.log[2], engine.log[0])
    assert follows(engine.log[3], engine.log[1])


def test_rewards_and_ends_are_remembered(rest, restart):
    async def before():
        opened = [await rest.start(f"t{i}") for i in range(3)]
        for item in opened:
            await rest.chat(item["api_key"], "hello")
            await rest.post("/rl/set_reward", {"reward": 0.5}, key=item["api_key"])
        for item in opened[1:]:
            await rest.post("/rl/end_session", key=item["api_key"])
        await rest.post("/export_trajectories", {"session_id": opened[2]["session_id"]})
        return opened

    opened = asyncio.run(before())
    again, num_open = restart()

    async def after():
        listed = (await again.post("/rl/sessions", method="GET")).json()["sessions"]
        calls = [(await again.chat(item["api_key"], "hello")).status_code for item in opened]
        body = {"session_id": opened[1]["session_id"]}
        return listed, calls, (await again.post("/export_trajectories", body)).json()["interactions"]

    listed, calls, rows = asyncio.run(after())
    assert num_open == 1
    assert [(item["task_id"], item["state"], list(item["rewards"].values())) for item in listed] == [
        ("t0", "open", [0.5]),
        ("t1", "ended", [0.5]),
    ]
    assert calls == [200, 410, 410]
    assert [row["reward"] for row in rows.values()] == [0.5]


def test_a_resumed_run_answers_the_agents_of_cancelled_records_by_410(rest, restart, database):
    async def before():
        opened = await rest.start()
        await database.void_after("run", 0)
        return opened["api_key"]

    key = asyncio.run(before())
    again, num_open = restart()
    assert num_open == 0
    assert asyncio.run(again.chat(key, "hello")).status_code == 410


def test_nothing_in_the_store_is_a_secret(rest, database):
    async def scenario():
        opened = await rest.start()
        session = rest.gateway._sessions.find_by_key(opened["api_key"])
        return opened["api_key"], session.token

    secrets = asyncio.run(scenario())
    stored = b"".join(path.read_bytes() for path in database.path.parent.iterdir())
    assert not [secret for secret in secrets if secret.encode() in stored]


def test_an_idle_session_expires(online, database, engine):
    rest = online(session_ttl_s=0.05)

    async def scenario():
        opened = await rest.start()
        await rest.chat(opened["api_key"], "hello")
        export = await asyncio.wait_for(rest.post("/export_trajectories", {"session_id": opened["session_id"]}), 5)
        return opened, export.status_code, (await rest.chat(opened["api_key"], "hello")).status_code

    opened, export, call = asyncio.run(scenario())
    assert (export, call) == (410, 410)
    assert asyncio.run(database.episode(opened["session_id"])).record.outcome is Outcome.TIMED_OUT


def test_a_session_that_generates_is_not_idle(online, engine):
    rest = online(session_ttl_s=1.5)

    async def scenario():
        opened = await rest.start()
        await engine.pause()
        call = asyncio.create_task(rest.chat(opened["api_key"], "hello"))
        await asyncio.to_thread(engine.begun[0].wait, 30)
        export = asyncio.create_task(rest.post("/export_trajectories", {"session_id": opened["session_id"]}))
        done, _ = await asyncio.wait({export}, timeout=2.5)
        assert not done
        await engine.resume()
        return (await call).status_code, (await asyncio.wait_for(export, 60)).status_code

    assert asyncio.run(scenario()) == (200, 410)


SERVE = """
import asyncio, json, sys
from pathlib import Path
from agentrl_core.chat import Chat
from agentrl_core.config.sampling_sections import GatewayConfig, SamplingConfig
from agentrl_core.gateway import Gateway
from agentrl_core.api.stores import RunRow
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.engines.scripted import ScriptedEngine

model_dir, database, port = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
chat = Chat.from_directory(model_dir)

def say(prompt_ids, number):
    print(json.dumps({"begun": number}), flush=True)
    return [*(token for letter in "reply" for token in chat.encode(letter)), *chat.encode("<|im_end|>")]

engine = ScriptedEngine(replies=say, model_dir=model_dir, context_length=10_000)
engine.start()
store = SQLiteStore(path=database)
if not asyncio.run(store.runs()):
    asyncio.run(store.create_run(RunRow(id="run", created_at=0.0, status="running", config={}, components={})))
gateway = Gateway(
    engine=engine, chat=chat, store=store, run_id="run", sampling=SamplingConfig(), seed=7,
    config=GatewayConfig(port=port), admin_key="the-admins-own-secret",
)
asyncio.run(gateway.restore_sessions())
gateway.start()
print(json.dumps({"url": gateway.url}), flush=True)
for line in sys.stdin:
    if line.strip() == "pause":
        asyncio.run(engine.pause())
        print(json.dumps({"paused": True}), flush=True)
    else:
        print(json.dumps({"log": [[*said.request.prompt_ids, *said.ids] for said in engine.log]}), flush=True)
"""


class Process:
    """A gateway in a process of its own."""

    def __init__(self, model_dir, database, port):
        command = [sys.executable, "-c", SERVE, str(model_dir), str(database), str(port)]
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self.wait_for("url")

    def wait_for(self, key):
        while key not in (told := json.loads(self.popen.stdout.readline())):
            pass
        return told[key]

    def ask(self, command, key):
        self.popen.stdin.write(command + "\n")
        self.popen.stdin.flush()
        return self.wait_for(key)

    def kill(self):
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait()
        self.popen.stdin.close()
        self.popen.stdout.close()


def free_port():
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.slow
def test_a_gateway_killed_in_the_middle_of_a_call_goes_on_with_the_conversation(model_dir, tmp_path):
    port, database = free_port(), tmp_path / "agentrl.db"
    processes = [Process(model_dir, database, port)]

    async def converse():
        admin = AsyncOpenAI(base_url=processes[0].url, api_key="the-admins-own-secret", max_retries=0)
        await admin.post("/grant_capacity", cast_to=object)
        opened = await admin.post("/rl/start_session", body={"task_id": "t"}, cast_to=object)
        async with AsyncOpenAI(base_url=processes[0].url, api_key=opened["api_key"], max_retries=10) as client:
            messages = [{"role": "user", "content": "hello"}]
            first = await client.chat.completions.create(model="default", messages=messages)
            messages += [first.choices[0].message, {"role": "user", "content": "go on"}]
            (before,) = processes[0].ask("log", "log")
            processes[0].ask("pause", "paused")
            second = asyncio.create_task(client.chat.completions.create(model="default", messages=messages))
            await asyncio.to_thread(processes[0].wait_for, "begun")
            processes[0].kill()
            processes.append(await asyncio.to_thread(Process, model_dir, database, port))
            reply = await second
            (after,) = processes[1].ask("log", "log")
        ended = await admin.post(
            "/rl/end_session", cast_to=object, options={"headers": {"authorization": f"Bearer {opened['api_key']}"}}
        )
        await admin.close()
        return before, after, reply.choices[0].message.content, ended

    try:
        before, after, said, ended = asyncio.run(converse())
    finally:
        for process in processes:
            process.kill()
    assert after[: len(before)] == before
    assert said == "reply"
    assert ended == {"interaction_count": 2}
