"""Members that are suspended for longer than their lease, as a machine that is moved or a terminal's Ctrl-Z does it."""

import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
from tests.run.roles.conftest import Process
from tests.run.roles.test_processes import check_whole, stored

pytestmark = pytest.mark.slow

STEPS, TASKS = 12, 2
LEASE = "rollout.lease_s=6"
# As on a network file system whose server has dropped the lock of a machine that does not answer.
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


@pytest.fixture
def members(written, role):
    """Begin a run; return its server, its sampler and its trainer, which has made two steps."""
    written(trainer={"steps": STEPS, "save_steps": 1}, rollout={"tasks_per_step": TASKS, "max_head_offpolicyness": 1})
    found = role("serve", LEASE), role("sample", LEASE), role("train", LEASE)
    found[-1].until_step(2)
    return found


@pytest.fixture
def elsewhere(tmp_path):
    """Start a trainer of the run on what looks like another machine."""
    with ExitStack() as running:

        def start():
            command = [sys.executable, "-u", "-c", ELSEWHERE, "train", "config.yaml", "--name", "r", LEASE]
            program = subprocess.Popen(
                command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            running.callback(program.communicate)
            running.callback(program.kill)
            return Process(program)

        yield start


def until_lost(folder, process):
    """Wait until the others have declared the member of a process lost."""
    deadline = time.monotonic() + 120
    while not any(member.pid == process.pid and member.state == "lost" for member in stored(folder)[0]):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def check_positions(folder):
    """Each position was trained once, and none is left out."""
    _, groups, _, steps = stored(folder)
    index = {group.id: group.index for group in groups if not group.is_eval}
    assert sorted(index[group] for step in steps for group in step.groups) == list(range(STEPS * TASKS))
    assert not [group.id for group in groups if group.state == "taken"]


def test_a_trainer_that_wakes_beside_its_successor_ends_alone(members, elsewhere, tmp_path):
    serve, sample, train = members
    train.signal(signal.SIGSTOP)
    other = elsewhere()
    other.until_step(4)
    train.signal(signal.SIGCONT)
    assert train.ends() == 1, train.told
    assert "was declared lost" in train.told
    assert "run 'r' has a trainer already: train on elsewhere" in train.told
    assert other.ends() == 0, other.told
    assert (serve.ends(), sample.ends()) == (0, 0), serve.told + sample.told
    found = check_whole(tmp_path, steps=STEPS)
    assert sorted((member.role, member.state) for member in found) == [
        ("sample", "left"),
        ("serve", "left"),
        ("train", "left"),
        ("train", "lost"),
    ]
    check_positions(tmp_path)


def test_a_trainer_that_wakes_without_a_successor_goes_on(members, tmp_path):
    serve, sample, train = members
    train.signal(signal.SIGSTOP)
    until_lost(tmp_path, train)
    train.signal(signal.SIGCONT)
    assert train.ends() == 0, train.told
    assert "joining again (1 of 3)" in train.told
    assert (serve.ends(), sample.ends()) == (0, 0), serve.told + sample.told
    found = check_whole(tmp_path, steps=STEPS)
    assert [member.state for member in found if member.role == "train"] == ["lost", "left"]
    check_positions(tmp_path)


@pytest.mark.parametrize("which", [0, 1])
def test_a_server_or_a_sampler_that_sleeps_joins_again(members, role, tmp_path, which):
    sleeper, train = members[which], members[-1]
    sleeper.signal(signal.SIGSTOP)
    # without its only sampler or server, the run cannot end before that member is lost
    until_lost(tmp_path, sleeper)
    spare = role(("serve", "sample")[which], LEASE)
    spare.until("joined|sampling|serving")
    sleeper.signal(signal.SIGCONT)
    assert train.ends() == 0, train.told
    assert [process.ends() for process in (*members[:2], spare)] == [0, 0, 0], sleeper.told + spare.told
    check_whole(tmp_path, steps=STEPS)
    check_positions(tmp_path)


def test_a_sampler_that_is_started_after_the_end_ends_at_once(members, role):
    assert [process.ends() for process in members] == [0, 0, 0]
    late = [role(name, LEASE) for name in ("sample", "serve")]
    assert [process.ends() for process in late] == [0, 0]
    assert all("run 'r' has ended: finished" in process.told for process in late)


def test_a_trainer_with_another_config_is_refused_and_the_run_goes_on(members, role):
    serve, sample, train = members
    train.kill()
    refused = role("train", LEASE, "trainer.steps=99")
    assert refused.ends() == 1
    assert "trainer.steps is 99 here" in refused.told
    assert "loading torch" not in refused.told
    again = role("train", LEASE)
    assert again.ends() == 0, again.told
    assert (serve.ends(), sample.ends()) == (0, 0), serve.told + sample.told
