"""Processes that an agent keeps live as long as its worker; those that an episode leaves behind are ended."""

import json
from pathlib import Path

import pytest
from tests.rollout.subproc.conftest import gone, is_running

KEEPS = '''
import asyncio
import concurrent.futures
import multiprocessing
import subprocess
import sys
import threading
import time

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
POOLS = {}


class Repl:
    """A helper like those of many agents: started by the first call, and asked again in later ones."""

    def __init__(self):
        self.local = threading.local()

    def number(self):
        if not hasattr(self.local, "process"):
            self.local.process = subprocess.Popen(SLEEP)
        return self.local.process.pid


class Agent:
    def __init__(self):
        self.executor = concurrent.futures.ProcessPoolExecutor(1)
        self.forkserver = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("forkserver"))
        self.started = subprocess.Popen(SLEEP)
        self.repl = Repl()
        self.process = None

    def kept(self):
        """Processes that belong to the agent, most of them started by the first episode."""
        if self.process is None:
            self.process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
            self.process.start()
            POOLS["global"] = multiprocessing.get_context("spawn").Pool(1)
        return {
            "executor": self.executor.submit(os.getpid).result(),
            "fork server": self.forkserver.submit(os.getpid).result(),
            "pool": POOLS["global"].apply(os.getpid),
            "process": self.process.pid,
            "started": self.started.pid,
            "in a thread's attributes": self.repl.number(),
        }

    async def left(self):
        """Processes that only this episode knows."""
        plain = subprocess.Popen(SLEEP)
        daemon = "import os, time; os.setsid(); os.fork() and os._exit(0); print(os.getpid(), flush=True)"
        orphan = subprocess.Popen([*SLEEP[:2], daemon + "; time.sleep(600)"], stdout=subprocess.PIPE)
        with orphan.stdout:
            number = int(orphan.stdout.readline())
        orphan.wait()
        awaited = await asyncio.create_subprocess_exec(*SLEEP, stdout=subprocess.PIPE)
        abandoned = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
        worker = abandoned.submit(os.getpid).result()
        abandoned.submit(time.sleep, 600)
        lost = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        lost.start()
        return {"plain": plain.pid, "daemon": number, "awaited": awaited.pid, "executor": worker, "process": lost.pid}

    async def run(self, data, *, base_url, api_key):
        ask(data, base_url, api_key)
        with open(data["id"], "w") as file:
            json.dump([self.kept(), await self.left()], file)
        return 1.0
'''


@pytest.mark.parametrize("mode", ["subproc", "python"])
def test_an_agent_keeps_what_it_holds_and_nothing_else(agents, resolve, rehearsal, task, folder, mode, caplog):
    caplog.set_level("INFO")
    resolved = resolve(f"{agents(KEEPS)}:Agent", mode)
    kept = []
    for number in range(2):
        (episode,) = rehearsal.play(resolved, [task(number)])
        assert episode.record.outcome.value == "scored", episode.record.detail
        held, left = json.loads((folder / f"t{number}").read_text())
        kept.append(held)
        assert {name for name, pid in held.items() if not is_running(pid)} == set()
        # A killed process that nobody waits for may take a moment on a busy machine.
        assert {name for name, pid in left.items() if not gone(pid)} == set()
        told = [item for item in caplog.messages if "the agent left processes running" in item][-1]
        assert all(f"({pid})" not in told for pid in held.values())
        assert f"({left['plain']})" in told
    assert kept[0] == kept[1]


def test_episodes_share_the_process_of_a_reward_wrapper(agents, play):
    code = """
from agentrl_core import AsyncRewardWrapper


def process(prompt):
    return os.getpid()


class Agent:
    def __init__(self):
        self.reward = AsyncRewardWrapper(process, max_workers=1)

    async def run(self, data, *, base_url, api_key):
        ask(data, base_url, api_key)
        return await self.reward("2 + 2?")
"""
    records = play(f"{agents(code)}:Agent", count=8)
    assert [record.outcome.value for record in records] == ["scored"] * 8, records[0].detail
    assert len({record.reward for record in records}) == 1


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13"])
def test_every_version_of_python_keeps_a_pool_and_ends_what_is_left(agents, play, folder, version):
    found = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    if not found:
        pytest.skip(f"no Python {version} here")
    code = """
import asyncio
import concurrent.futures
import subprocess
import sys


class Agent:
    def __init__(self):
        self.pool = concurrent.futures.ProcessPoolExecutor(1)

    async def run(self, data, base_url, api_key):
        ask(data, base_url, api_key)
        left = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(600)")
        with open("left", "a") as file:
            print(left.pid, file=file)
        return float(self.pool.submit(os.getpid).result())
"""
    first, second = play(f"{agents(code)}:Agent", "python", python=str(found[0]), count=2)
    assert first.outcome.value == second.outcome.value == "scored", second.detail
    assert first.reward == second.reward
    assert all(gone(int(pid)) for pid in (folder / "left").read_text().split())
