"""A trainer that is suspended for longer than its lease, with its run's other members, on a MongoDB server."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from agentrl_mongo.store import MongoStore

pytestmark = pytest.mark.slow

STEPS, TASKS = 12, 2
# Another machine, whose file system does not know of the lock of the run's folder.
ELSEWHERE = """
import contextlib
import socket
import sys

socket.gethostname = lambda: "elsewhere"
from agentrl_core.cli import main
from agentrl_core.run import directory

directory.folder_lock = lambda folder: contextlib.nullcontext()
sys.exit(main(sys.argv[1:]))
"""


class Process:
    """One member, with its output so far."""

    def __init__(self, program):
        self._program, self.told, self.signal = program, "", program.send_signal

    def until_step(self, step):
        for line in self._program.stdout:
            self.told += line
            if re.match(rf"\s+{step}\s+\d+\s", line):
                return
        raise AssertionError(self.told)

    def ends(self):
        self.told += self._program.stdout.read()
        return self._program.wait(120)


@pytest.fixture
def start(config):
    """`start("train")` starts a member of the run, `start("train", ELSEWHERE)` one on another machine."""
    config["trainer"]["steps"] = STEPS
    config["rollout"] |= {"tasks_per_step": TASKS, "lease_s": 6.0, "max_head_offpolicyness": 1}
    Path("config.json5").write_text(json.dumps(config), encoding="utf-8")
    here = "import sys\nfrom agentrl_core.cli import main\nsys.exit(main(sys.argv[1:]))"
    with ExitStack() as running:

        def begin(role, code=here):
            command = [sys.executable, "-u", "-c", code, role, "config.json5", "--name", config["name"]]
            program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            running.callback(program.stdout.close)
            running.callback(program.wait)
            running.callback(program.kill)
            return Process(program)

        yield begin


@pytest.fixture
def look(config, url):
    """Read members, groups, live steps and status of the run."""

    async def read():
        name = config["name"]
        reader = MongoStore.read(url=url, run=name)
        try:
            (run,) = await reader.runs()
            steps = [step for step in await reader.steps(name) if not step.voided]
            return await reader.members(name), await reader.groups(name), steps, run.status
        finally:
            await reader.close()

    return lambda: asyncio.run(read())


def lost(look):
    deadline = time.monotonic() + 120
    while not any((member.role, member.state) == ("train", "lost") for member in look()[0]):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("has_successor", [True, False])
def test_a_run_goes_on_whose_trainer_sleeps(start, look, has_successor):
    others, train = [start("serve"), start("sample")], start("train")
    train.until_step(2)
    train.signal(signal.SIGSTOP)
    if has_successor:
        last = start("train", ELSEWHERE)
        last.until_step(4)
        train.signal(signal.SIGCONT)
        assert train.ends() == 1, train.told
        assert "has a trainer already: train on elsewhere" in train.told
    else:
        last = train
        lost(look)
        train.signal(signal.SIGCONT)
    assert last.ends() == 0, last.told
    assert [process.ends() for process in others] == [0, 0], others[0].told + others[1].told
    # the second one on a machine so busy that its heartbeats were late before it slept
    assert "was declared lost" in train.told or "no heartbeat reached the store" in train.told
    members, groups, steps, status = look()
    assert status == "finished"
    assert [member.state for member in members if member.role == "train"] == ["lost", "left"]
    assert [step.step for step in steps] == list(range(1, STEPS + 1))
    index = {group.id: group.index for group in groups}
    assert sorted(index[group] for step in steps for group in step.groups) == list(range(STEPS * TASKS))
    assert not [group.id for group in groups if group.state == "taken"]
