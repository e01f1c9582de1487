"""A serving process that is killed in the middle of a call: its episodes run again at the one that takes its place."""

import asyncio
import json
import signal
import subprocess
import sys

import attrs
import pytest
from tests.rollout.remote.test_remote_gateway import LOST, by_anthropic, by_openai, by_openai_stream, endings

from agentrl_core.api.members import Member
from agentrl_core.types import Outcome

SERVE = """
import asyncio, json, sys
from pathlib import Path
from tests.gateway.conftest import ADMIN, MemoryStore, running_gateway
from agentrl_core.chat import Chat
from agentrl_core.engines.scripted import ScriptedEngine

model_dir = Path(sys.argv[1])
chat = Chat.from_directory(model_dir)

def say(prompt_ids, number):
    print(json.dumps({"begun": number}), flush=True)
    return chat.encode("4<|im_end|>")

engine = ScriptedEngine(replies=say, model_dir=model_dir)
engine.start()
with running_gateway(chat, engine, MemoryStore(), admin_key=ADMIN) as gateway:
    print(json.dumps({"url": gateway.url}), flush=True)
    for line in sys.stdin:
        asyncio.run(engine.pause())
        print(json.dumps({"paused": True}), flush=True)
"""


@attrs.define
class Process:
    """A serving member in a process of its own."""

    popen: subprocess.Popen
    member: Member | None = None

    @classmethod
    def start(cls, model_dir):
        command = [sys.executable, "-c", SERVE, str(model_dir)]
        process = cls(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        process.member = Member(run_id="run", role="serve", url=process.wait_for("url"), pid=process.popen.pid)
        return process

    def wait_for(self, key):
        while key not in (told := json.loads(self.popen.stdout.readline())):
            pass
        return told[key]

    def pause(self):
        self.popen.stdin.write("pause\n")
        self.popen.stdin.flush()
        self.wait_for("paused")

    def kill(self):
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait()
        self.popen.stdin.close()
        self.popen.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize("agent", [by_openai, by_openai_stream, by_anthropic])
def test_episodes_of_a_killed_server_run_again(agent, model_dir, sample, episode, store):
    first, second = Process.start(model_dir), Process.start(model_dir)

    async def scenario(remote):
        first.pause()
        remote.update([first.member])
        slots = [asyncio.ensure_future(episode(agent, remote, slot=slot)) for slot in range(3)]
        for _ in slots:
            await asyncio.to_thread(first.wait_for, "begun")
        first.kill()
        remote.update([first.member, second.member])
        return await asyncio.gather(*slots)

    try:
        ended = sample(scenario)
    finally:
        second.kill()
        if first.popen.poll() is None:
            first.kill()
    assert [item.record.outcome for item in ended] == [Outcome.SCORED] * 3
    assert sorted(endings(store)) == sorted([LOST] * 3 + [(Outcome.SCORED, "")] * 3)
    assert all(len(item.interactions) == 1 for item in ended)
