"""What an agent does to its process is one record's outcome; the next episode finds a sound worker."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
from tests.rollout.subproc.conftest import gone, is_running

MODES = ("subproc", "python")

AGENT = '''
import ctypes
import subprocess
import sys
import threading
import time


class Agent:
    """Misbehaves on the task t0 alone."""

    def __init__(self):
        with open("workers", "a") as file:
            print(os.getpid(), file=file)

    def run(self, data, *, base_url, api_key):
        ask(data, base_url, api_key)
        if data["id"] == "t0":
            self.misbehave()
        return 1.0


class Crashes(Agent):
    def misbehave(self):
        print("the last words", flush=True)
        os.kill(os.getpid(), 11)


class Leaves(Agent):
    def misbehave(self):
        sys.stderr.write("leaving")
        os._exit(7)


class Greedy(Agent):
    def misbehave(self):
        hoard = []
        while True:
            hoard.append(bytearray(2**22) + b"x")
            time.sleep(0.001)


class Stuck(Agent):
    def misbehave(self):
        time.sleep(600)


class Blocks(Agent):
    async def run(self, data, *, base_url, api_key):
        return super().run(data, base_url=base_url, api_key=api_key)

    def misbehave(self):
        time.sleep(600)


class Closes(Agent):
    """Shuts every descriptor that it did not open."""

    def misbehave(self):
        os.closerange(3, 100)
'''


def workers_of(folder):
    return [int(number) for number in (folder / "workers").read_text().split()]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("Crashes", "was ended by SIGSEGV; it wrote last: "),
        ("Leaves", "ended with exit code 7; it wrote last: leaving"),
        ("Closes", "ended with exit code 1; it wrote last: "),
    ],
)
def test_a_process_that_ends_fails_its_record_and_is_replaced(agents, play, folder, mode, name, detail):
    first, second = play(f"{agents(AGENT)}:{name}", mode, count=2)
    assert (first.outcome.value, first.reason) == ("failed", "AgentProcessDied")
    assert detail in first.detail
    assert (second.outcome.value, second.reward) == ("scored", 1.0), second.detail
    pids = workers_of(folder)
    assert len(pids) == 2
    assert gone(pids[0])


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_that_uses_too_much_memory_is_killed(agents, play, mode):
    first, second = play(f"{agents(AGENT)}:Greedy", mode, count=2, subproc_max_memory_mb=200)
    assert (first.outcome.value, first.reason) == ("failed", "AgentProcessDied")
    assert "rollout.agent.subproc_max_memory_mb is 200" in first.detail
    assert second.outcome.value == "scored"


@pytest.mark.parametrize("name", ["Stuck", "Blocks"])
def test_an_agent_that_hangs_is_timed_out_and_killed(agents, resolve, rehearsal, task, folder, name):
    resolved = resolve(f"{agents(AGENT)}:{name}")
    (hanging,) = rehearsal.play(resolved, [task(0)], timeout_s=1.0)
    (sound,) = rehearsal.play(resolved, [task(1)])
    assert hanging.record.outcome.value == "timed_out"
    assert (sound.record.outcome.value, sound.record.reward) == ("scored", 1.0), sound.record.detail
    assert gone(workers_of(folder)[0])


CANCELLED = """
import asyncio


class Agent:
    async def run(self, data, *, base_url, api_key):
        ask(data, base_url, api_key)
        if data["id"] == "t0":
            try:
                await asyncio.sleep(600)
            finally:
                open("cleaned", "w").close()
        return float(os.getpid())
"""


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_that_heeds_its_cancellation_keeps_its_process(agents, resolve, rehearsal, task, folder, mode):
    resolved = resolve(f"{agents(CANCELLED)}:Agent", mode)
    (before,) = rehearsal.play(resolved, [task(1)])
    (timed_out,) = rehearsal.play(resolved, [task(0)], timeout_s=3.0)
    (after,) = rehearsal.play(resolved, [task(2)])
    assert timed_out.record.outcome.value == "timed_out"
    assert (folder / "cleaned").exists()
    assert before.record.reward == after.record.reward


THREADED = """
import asyncio
import time


def slowly(data):
    time.sleep(4)
    open(f"{data['id']} saw {os.environ['OPENAI_API_KEY']}", "w").close()


class Agent:
    async def run(self, data, *, base_url, api_key):
        ask(data, base_url, api_key)
        if data["id"] == "t0":
            await asyncio.to_thread(slowly, data)
        return float(os.getpid())
"""


def test_a_thread_of_a_cancelled_agent_never_runs_on_in_the_next_episode(agents, resolve, rehearsal, task, folder):
    resolved = resolve(f"{agents(THREADED)}:Agent")
    (before,) = rehearsal.play(resolved, [task(1)])
    (timed_out,) = rehearsal.play(resolved, [task(0)], timeout_s=1.0)
    (after,) = rehearsal.play(resolved, [task(2)])
    assert timed_out.record.outcome.value == "timed_out"
    assert after.record.outcome.value == "scored"
    assert before.record.reward != after.record.reward
    assert list(folder.glob("t0 saw*")) == []


def test_an_agent_that_removes_its_working_folder_keeps_its_answer(agents, resolve, rehearsal, task, folder):
    code = """
import shutil


class Agent:
    async def run(self, data, *, base_url, api_key):
        ask(data, base_url, api_key)
        shutil.rmtree(os.getcwd()) if data["id"] == "t0" else None
        return 1.0
"""
    resolved = resolve(f"{agents(code)}:Agent")
    for number in range(2):
        (episode,) = rehearsal.play(resolved, [task(number)])
        assert (episode.record.outcome.value, episode.record.reward) == ("scored", 1.0), episode.record.detail


FORKS = """
import subprocess
import sys
import time


class Agent:
    def run(self, data, *, base_url, api_key):
        ask(data, base_url, api_key)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        detached = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        double = "import os, time; os.setsid(); os.fork() and os._exit(0); print(os.getpid(), flush=True)"
        double += "; time.sleep(600)"
        orphan = subprocess.Popen([sys.executable, "-c", double], stdout=subprocess.PIPE)
        pid = int(orphan.stdout.readline())
        orphan.stdout.close()
        orphan.wait()
        with open("children", "w") as file:
            print(child.pid, detached.pid, pid, file=file)
        if data["id"] == "t1":
            os._exit(1)
        return 1.0


class Copies:
    def run(self, data, *, base_url, api_key):
        ask(data, base_url, api_key)
        return 1.0 if os.fork() else 0.0
"""


@pytest.mark.parametrize("number", [0, 1], ids=["returns", "exits"])
def test_nothing_that_an_agent_starts_outlives_its_episode(agents, resolve, rehearsal, task, folder, number, caplog):
    caplog.set_level("INFO")
    (episode,) = rehearsal.play(resolve(f"{agents(FORKS)}:Agent"), [task(number)])
    assert episode.record.outcome.value == ("scored", "failed")[number], episode.record.detail
    pids = [int(pid) for pid in (folder / "children").read_text().split()]
    assert len(pids) == 3
    assert all(map(gone, pids))
    if number == 0:
        assert "the agent left processes running; they were ended" in caplog.text


def test_of_an_agent_that_forks_itself_the_first_answers(agents, play):
    records = play(f"{agents(FORKS)}:Copies", count=2)
    assert [record.reward for record in records] == [1.0, 1.0]


NOISE = """
import sys


class Agent:
    def run(self, data, *, base_url, api_key):
        ask(data, base_url, api_key)
        sys.stdout.buffer.write(bytes(range(256)) * 4096)
        os.write(1, b"\\x00\\x00\\x00\\x05\\x00\\x00\\x00\\x00hello")
        os.write(2, f"the key is {api_key}\\n".encode())
        sys.stdout.close()
        return 1.0
"""


@pytest.mark.parametrize("mode", MODES)
def test_what_an_agent_prints_goes_to_the_log_within_bounds_and_without_secrets(agents, play, caplog, mode):
    caplog.set_level("INFO", logger="agentrl_core")
    first, second = play(f"{agents(NOISE)}:Agent", mode, count=2)
    assert first.outcome.value == "scored", first.detail
    (message,) = [item.getMessage() for item in caplog.records if f"record {first.id} printed" in item.getMessage()]
    assert "hello" in message
    assert "the key is " in message
    assert 10_000 < len(message) < 100_000
    assert "sk-agentrl" not in message or "…" in message
    assert second.id in caplog.text


def test_a_worker_that_died_between_episodes_costs_no_record(agents, resolve, rehearsal, task, folder):
    resolved = resolve(f"{agents(AGENT)}:Agent")
    (before,) = rehearsal.play(resolved, [task(1)])
    os.kill(workers_of(folder)[0], signal.SIGKILL)
    (after,) = rehearsal.play(resolved, [task(2)])
    assert (before.record.reward, after.record.reward) == (1.0, 1.0), after.record.detail
    assert len(workers_of(folder)) == 2


PARENT = """
import sys
import time
from pathlib import Path

from agentrl_core.config.sampling_sections import AgentConfig, RolloutConfig
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.subproc.resolving import resolve_in_workers

resolve_in_workers(
    sys.argv[1], registry=load_registry(), base_dir=Path.cwd(), rollout=RolloutConfig(agent=AgentConfig(mode="subproc"))
)
print("ready", flush=True)
if sys.argv[2] == "killed":
    time.sleep(300)
"""

# The thread keeps the process from ending by itself when the run is gone.
HELPER = """
import subprocess
import sys
import threading
import time


class Agent:
    def __init__(self):
        threading.Thread(target=time.sleep, args=(300,)).start()
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
        with open("workers", "w") as file:
            print(os.getpid(), os.getppid(), helper.pid, file=file)

    def run(self, data):
        return 1.0
"""


@pytest.fixture
def start_run(agents, folder):
    """Start a run with a worker, its guard and a helper of the agent; they are ended in any case."""
    started = []

    def start(end):
        command = [sys.executable, "-c", textwrap.dedent(PARENT), f"{agents(HELPER)}:Agent", end]
        parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(parent)
        return parent

    yield start
    for parent in started:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    for pid in workers_of(folder) if (folder / "workers").exists() else ():
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)


def test_no_worker_outlives_a_run_that_is_killed(start_run, folder):
    parent = start_run("killed")
    assert parent.stdout.readline() == "ready\n"
    processes = workers_of(folder)
    assert len(processes) == 3
    assert all(map(is_running, processes))
    parent.kill()
    assert [pid for pid in processes if not gone(pid)] == []


def test_a_run_that_ends_without_closing_its_workers_takes_them_along(start_run, folder):
    parent = start_run("by itself")
    assert parent.stdout.read() == "ready\n"
    assert parent.wait(60) == 0
    processes = workers_of(folder)
    assert len(processes) == 3
    assert not any(map(psutil.pid_exists, processes))  # each was collected by its parent, the guard by the run


def test_starts_that_keep_failing_stop_the_run(agents, resolve, rehearsal, task, folder):
    from agentrl_core.errors import RunError

    name = agents(AGENT)
    resolved = resolve(f"{name}:Leaves")
    (episode,) = rehearsal.play(resolved, [task(0)])
    assert episode.record.reason == "AgentProcessDied"
    (folder / name).unlink()
    with pytest.raises(RunError, match=r"3 times in a row a worker could not be started: .*there is no file"):
        rehearsal.play(resolved, [task(1)])


@pytest.mark.slow
def test_a_long_queue_takes_nothing_from_an_episodes_time(agents, resolve, rehearsal, task):
    code = """
import time

def run(data, *, base_url, api_key):
    ask(data, base_url, api_key)
    time.sleep(1.0)
    return 1.0
"""
    began = time.monotonic()
    episodes = rehearsal.play(resolve(f"{agents(code)}:run"), [task(number) for number in range(8)], timeout_s=6.0)
    assert [episode.record.outcome.value for episode in episodes] == ["scored"] * 8
    assert time.monotonic() - began > 8.0
