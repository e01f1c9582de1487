"""Sixty-four agents at once whose clients break off wherever they can: nothing is lost, doubled or left over."""

from __future__ import annotations

import asyncio
import collections
import importlib.util
import json
import logging
import os
import random
import sys
import time
from pathlib import Path

import attrs
import psutil
import pytest
import uvloop

from agentrl_core.api.stores import RunRow
from agentrl_core.chat import Chat
from agentrl_core.engines.scripted import ScriptedEngine
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import FinishReason, Record

AGENTS = 64
EPISODES = int(os.environ.get("AGENTRL_LOAD_EPISODES", "40"))
"""Of each agent."""
MOST_GROWTH = 16 * 2**20
"""Bytes that the process may grow by over the last three quarters; secrets of ended sessions are a few MB of it."""

FAULTS = {
    "none": 40,
    "leaves in its body": 8,
    "leaves while it is generated": 10,
    "leaves at the first bytes": 10,
    "leaves later in the reply": 8,
    "asks twice by one key": 6,
    "asks for twins": 6,
    "sends garbage first": 7,
    "ends the session meanwhile": 5,
}
AGAIN = ("counted", "by its key", "")
"""Ways in which a client that went away asks again, or not."""
COUNTED = ("x-stainless-retry-count: 0", "x-stainless-retry-count: 1")
GARBAGE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: -4\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /s/nobody/v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-nobody\r\n\r\n",
)

PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""What a client gets that has closed its sending side, while its answer takes longer than a moment."""

_SPEC = importlib.util.spec_from_file_location("load_wire", Path(__file__).with_name("load_wire.py"))
wire = sys.modules.setdefault("load_wire", importlib.util.module_from_spec(_SPEC))
_SPEC.loader.exec_module(wire)


class LoadEngine(ScriptedEngine):
    """Says another short text in every call, spelt; its log is kept by session until that session is judged."""

    def __init__(self, chat):
        super().__init__(replies=self._spell, context_length=100_000)
        self.letters = {letter: chat.encode(letter) for letter in "rely é0123456789p"}
        self.stop = list(chat.stop_token_ids[:1])
        self.by_session = collections.defaultdict(list)
        self.log = self
        self.start()

    def append(self, generation):
        """Take an entry of the log."""
        self.by_session[generation.request.session].append(generation)

    def _spell(self, _prompt_ids, number):
        return [token for letter in f"reply é {number}" for token in self.letters[letter]] + self.stop


@pytest.fixture(scope="module")
def chat(model_dir):
    with pytest.MonkeyPatch.context() as patch:  # its caches of prompts are full within the first quarter
        patch.setattr("agentrl_core.chat.facade._MOST_CACHED_BYTES", 2**20)
        return Chat.from_directory(model_dir)


@pytest.fixture
def engine(chat):
    return LoadEngine(chat)


@pytest.fixture
def store(tmp_path):
    store = SQLiteStore(path=tmp_path / "run.db")
    yield store
    asyncio.run(store.close())


@attrs.define
class Totals:
    """What came of all episodes."""

    calls: int = 0
    completed: int = 0
    stored: int = 0
    aborted: int = 0
    faults: collections.Counter = attrs.field(factory=collections.Counter)
    refusals: collections.Counter = attrs.field(factory=collections.Counter)


class Episode:
    """One episode of an agent: a few turns in one API, most of them disturbed."""

    def __init__(self, agent, number):
        self.agent, self.random = agent, random.Random(f"{agent.number}/{number}")
        self.name = f"{agent.number}.{number}"
        self.record = Record(id=f"r{self.name}", run_id="run", task_id="t", group_id=agent.group, sample_index=number)
        self.api = self.random.choice(wire.APIS)
        self.read = {}
        """Id -> text of the replies that the client has read to their end."""
        self.expected = {}
        """Marker of a turn -> how many calls of it may be in the store; several where that is up to the race."""
        self.session = None

    async def run(self):
        agent = self.agent
        await agent.store.add_record(self.record)
        self.session = await agent.gateway.open_session(self.record, seed_key=(agent.number,))
        self.path = f"{self.session.base_url.removeprefix(agent.gateway.url)}/v1/{self.api.route}"
        history = []
        for turn in range(self.random.choice((1, 1, 2, 3))):
            marker = f"{self.name}.{turn}"
            asked = [*history, {"role": "user", "content": f"turn {marker}"}]
            told = await self._turn(marker, asked)
            if self.session.closed:
                break
            if told is not None:
                history = [*asked, {"role": "assistant", "content": told.text}]
        await agent.gateway.close_session(self.session)
        await self._judge()

    async def _turn(self, marker, asked):
        """Make one call with one fault; returns what was told, None where the client has given up."""
        (fault,) = self.random.choices(list(FAULTS), FAULTS.values())
        self.agent.totals.faults[fault] += 1
        self.agent.totals.calls += 1
        stream = self.random.random() < 0.5
        body = self.api.body(asked, stream=stream)
        ask = Ask(self, marker, body, stream=stream)
        self.expected[marker] = (1,)
        match fault:
            case "leaves in its body" | "leaves while it is generated" | "leaves at the first bytes":
                return await ask.cut_off(fault, again=self.random.choices(AGAIN, (7, 7, 6))[0])
            case "leaves later in the reply":
                return await ask.cut_off(fault, again=self.random.choices(AGAIN, (7, 7, 6))[0])
            case "asks twice by one key":
                header = f"Idempotency-Key: {marker}"
                first, second = await asyncio.gather(ask.send(header), ask.send(header))
                assert (first.id, first.text) == (second.id, second.text)
                return first
            case "asks for twins":
                count = self.random.choice((2, 3))
                twins = await asyncio.gather(*(ask.send() for _ in range(count)))
                assert len({told.id for told in twins}) == count
                self.expected[marker] = (count,)
                return self.random.choice(twins)
            case "ends the session meanwhile":
                self.expected[marker] = (0, 1)
                told, _ = await asyncio.gather(ask.send(), self.agent.gateway.close_session(self.session))
                return told
            case "sends garbage first":
                await self.agent.send_garbage(self.random)
        return await ask.send("x-stainless-retry-count: 0")

    async def _judge(self):
        """Compare the episode in the store with the engine's log and with what the client has read."""
        episode = await self.agent.store.episode(self.record.id)
        log = {call.request.request_id: call for call in self.agent.engine.by_session.pop(self.record.id, ())}
        self.agent.totals.aborted += sum(call.finish_reason is FinishReason.ABORT for call in log.values())
        found = collections.Counter()
        for item in episode.interactions:
            call = log[item.id]
            assert call.finish_reason is FinishReason.STOP
            assert episode.full_ids(item) == call.request.prompt_ids + call.ids
            if item.id in self.read:
                assert self.read.pop(item.id) == self.agent.chat.reply_text(call.ids)
            marker = self.agent.chat.decode(call.request.prompt_ids).rpartition("turn ")[2].split("<")[0]
            found[marker] += 1
        assert not self.read, f"read, but not stored: {self.read}"
        for marker, counts in self.expected.items():
            assert found[marker] in counts, (marker, counts, found)
        assert found.keys() <= self.expected.keys()
        self.agent.totals.stored += len(episode.interactions)


class Ask:
    """One logical call of an episode."""

    def __init__(self, episode, marker, body, *, stream):
        self.episode, self.marker, self.body, self.stream = episode, marker, body, stream
        self.agent = episode.agent

    async def send(self, *headers):
        """Send it and read the reply to its end."""
        connection = await self.agent.connect()
        try:
            connection.send(wire.request(self.episode.path, self.body, *headers))
            told = self.episode.api.told(*await connection.read(), stream=self.stream)
        except BaseException:  # it would be left over to the tests that come next
            connection.leave(rudely=True)
            raise
        self.agent.keep(connection)
        if told.status == 200:
            self.episode.read[told.id] = told.text
            self.agent.totals.completed += 1
            return told
        code = json.loads(told.error)["error"]
        self.agent.totals.refusals[f"{told.status} {code.get('code') or code.get('type')}"] += 1
        assert self.episode.session.closed, told
        return None

    async def cut_off(self, where, *, again):
        """Go away at some point of the call, and perhaps ask again: counted, as SDKs do, or by a key."""
        first, *more = [f"Idempotency-Key: {self.marker}"] * 2 if again == "by its key" else COUNTED
        await self._leave(where, first)
        if where == "leaves in its body":
            self.episode.expected[self.marker] = (1,) if again else (0,)
        elif not again:
            self.episode.expected[self.marker] = (0, 1)
        elif again == "counted":  # a reply of its own where the earlier one was sent, as far as the gateway knows
            self.episode.expected[self.marker] = (1, 2)
        return await self.send(*more) if again else None

    async def _leave(self, where, header):
        """Make the call and go away."""
        chance = self.episode.random
        connection = await self.agent.connect()
        data = wire.request(self.episode.path, self.body, header)
        try:
            if where == "leaves in its body":
                connection.send(data[: -chance.randrange(1, len(self.body))])
                await asyncio.sleep(0)
            else:
                connection.send(data)
            if where == "leaves while it is generated":
                for _ in range(chance.randrange(1, 8)):
                    await asyncio.sleep(0)
            elif where == "leaves at the first bytes":
                await connection.reader.readexactly(chance.randrange(1, 16))
            elif where == "leaves later in the reply":
                await connection.reader.readexactly(chance.randrange(100, 200))
        finally:
            connection.leave(rudely=chance.random() < 0.5)


class Agent:
    """A client that goes through its episodes one after the other, on connections that it keeps while they last."""

    def __init__(self, number, gateway, store, engine, chat, totals):
        self.number, self.group = number, ""
        self.gateway, self.store, self.engine, self.chat, self.totals = gateway, store, engine, chat, totals
        host, port = gateway.url.removeprefix("http://").split(":")
        self.address = (host, int(port))
        self.idle = []

    async def run(self, episodes):
        for number in episodes:
            async with asyncio.timeout(60):
                await Episode(self, number).run()

    async def connect(self):
        return self.idle.pop() if self.idle else await wire.Wire.open(self.address)

    def keep(self, connection):
        self.idle.append(connection)

    def close(self):
        for connection in self.idle:
            connection.leave(rudely=False)
        self.idle.clear()

    async def send_garbage(self, chance):
        """Send nonsense; whatever the gateway says to it, it is no failure of its own."""
        connection = await wire.Wire.open(self.address)
        try:
            connection.send(chance.choice(GARBAGE))
            connection.writer.write_eof()
            head = PROBE
            while head == PROBE:
                head = await connection.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as end:
            head = end.partial
        finally:
            connection.leave(rudely=True)
        assert not head or 400 <= int(head[9:12]) < 500, head


async def all_of(agents, episodes):
    """Let agents go through episodes; once one fails, none goes on."""
    async with asyncio.TaskGroup() as group:
        for agent in agents:
            group.create_task(agent.run(episodes))


@pytest.mark.slow
def test_nothing_is_lost_doubled_or_left_over(make_gateway, store, engine, chat, caplog, capsys):
    caplog.set_level(logging.ERROR)
    gateway, totals, process = make_gateway(), Totals(), psutil.Process()
    agents = [Agent(number, gateway, store, engine, chat, totals) for number in range(AGENTS)]
    broken = []

    async def announced():
        await store.create_run(RunRow(id="run", created_at=0.0, status="running", config={}, components={}))
        for agent in agents:
            (agent.group,) = await store.add_evaluation("run", "train", ["t"], version=0, claimable=False)

    async def playing():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
        await announced()
        quarter = EPISODES // 4
        try:
            await all_of(agents, range(quarter))
            before = process.memory_info().rss
            await all_of(agents, range(quarter, EPISODES))
            return before, process.memory_info().rss
        finally:
            for agent in agents:
                agent.close()

    began, cpu = time.perf_counter(), time.process_time()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        before, after = runner.run(playing())
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    report = [
        f"{AGENTS * EPISODES} episodes, {totals.calls} calls, {totals.completed} replies read,",
        f"{totals.stored} stored, {totals.aborted} aborted in {seconds:.0f} s ({cpu:.0f} s CPU, clients included):",
        f"{totals.completed / seconds:.0f} replies/s; memory {before / 2**20:.0f} MB -> {after / 2**20:.0f} MB",
        f"\n{dict(totals.faults)}\n{dict(totals.refusals)}",
    ]
    with capsys.disabled():
        print("", *report)  # noqa: T201 - the report of a load test
    assert totals.aborted
    assert not broken
    assert not caplog.records
    assert not engine._jobs  # nothing runs on
    usage = asyncio.run(store.usage("run"))
    assert sum(one.calls for one in usage.values()) == totals.stored == gateway.calls  # and nothing came later
    late = [call for calls in engine.by_session.values() for call in calls]
    assert {call.finish_reason for call in late} <= {FinishReason.ABORT}
    assert after - before < MOST_GROWTH
