"""agentrl runs stop, pause, resume and set."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading

import pytest

from agentrl_core.api.members import Member
from agentrl_core.cli.run_members import confirmed_live, wait_until_left
from agentrl_core.stores.sqlite import SQLiteStore

DEADLINE_S = 30.0


@pytest.fixture
def gone():
    """The pid of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def obeying():
    """Play a member, on a thread of its own, that leaves when the run is to stop."""
    threads = []

    def obey(folder, member):
        async def run():
            store, seen = SQLiteStore(path=folder / "agentrl.db"), 0
            async with asyncio.timeout(DEADLINE_S):
                while (await store.control(member.run_id)).wanted != "stop":
                    seen = await store.changed(member.run_id, seen, timeout_s=0.05)
            await store.leave(member.id)
            await store.close()

        thread = threading.Thread(target=lambda: asyncio.run(run()))
        thread.start()
        threads.append(thread)

    yield obey
    for thread in threads:
        thread.join(DEADLINE_S)


def wanted(write, folder):
    return write(folder, lambda store: store.control("calm-otter")).wanted


def test_stop_waits_until_the_processes_have_left(agentrl, live_run, write, obeying):
    folder, trainer = live_run()
    obeying(folder, trainer)
    result = agentrl("runs", "stop", "calm-otter", "--wait", str(DEADLINE_S))
    assert result.code == 0, result.err
    assert result.out.splitlines()[-1] == "run calm-otter has stopped. To resume: agentrl runs resume calm-otter"
    assert [member.state for member in write(folder, lambda store: store.members("calm-otter"))] == ["left"]


def test_stop_names_the_process_that_goes_on_and_how_to_end_it(agentrl, live_run, write):
    folder, trainer = live_run()
    result = agentrl("runs", "stop", "calm-otter", "--wait", "0")
    assert result.code == 1
    assert f"still there after 0 s: {trainer.name}" in result.err
    assert f"kill {os.getpid()}" in result.err
    assert wanted(write, folder) == "stop"
    as_json = agentrl("runs", "stop", "calm-otter", "--wait", "0", "--json")
    assert as_json.code == 1
    assert [member["pid"] for member in as_json.json["live"]] == [os.getpid()]


def test_a_silent_member_of_another_host_does_not_hold_stop_for_ever(agentrl, live_run, write):
    folder, _ = live_run(host="node7", lease_s=0.01)
    assert agentrl("runs", "stop", "calm-otter", "--wait", str(DEADLINE_S)).code == 0
    assert [member.state for member in write(folder, lambda store: store.members("calm-otter"))] == ["lost"]


def test_ended_and_abandoned_runs_are_not_stopped(agentrl, live_run, write, gone):
    folder, _ = live_run(pid=gone)
    refused = agentrl("runs", "stop", "calm-otter")
    assert (refused.code, refused.err) == (
        2,
        "error: run calm-otter (running) has no live process that could stop it\n",
    )
    write(folder, lambda store: store.update_run("calm-otter", status="finished"))
    refused = agentrl("runs", "pause", "calm-otter")
    assert refused.code == 2
    assert "run calm-otter is finished, so there is nothing to pause" in refused.err
    assert wanted(write, folder) == "run"


def test_a_paused_run_goes_on(agentrl, live_run, write, resumed):
    folder, _ = live_run()
    assert agentrl("runs", "pause", "calm-otter").code == 0
    assert wanted(write, folder) == "pause"
    assert agentrl("runs", "list", "--json").json[0]["status"] == "paused"
    assert agentrl("runs", "resume", "calm-otter", "--json").json == {"name": "calm-otter", "wanted": "run"}
    assert wanted(write, folder) == "run"
    assert not resumed.calls


def test_a_live_run_is_not_resumed_a_second_time(agentrl, live_run, write, resumed):
    folder, trainer = live_run()
    again = agentrl("runs", "resume", "calm-otter")
    assert (again.code, again.err) == (
        2,
        f"error: run calm-otter goes on already ({trainer.name}), so there is nothing to resume\n",
    )
    write(folder, lambda store: store.set_control("calm-otter", wanted="pause"))
    changed = agentrl("runs", "resume", "calm-otter", "trainer.steps=9")
    assert changed.code == 2
    assert "agentrl runs set calm-otter OPTION=VALUE" in changed.err
    assert wanted(write, folder) == "pause"
    assert not resumed.calls


def test_a_run_whose_process_is_gone_resumes_from_its_checkpoint(agentrl, live_run, resumed, gone):
    folder, _ = live_run(pid=gone)
    result = agentrl("runs", "resume", "calm-otter", "--json")
    assert (result.code, result.json["status"]) == (0, "finished")  # what trackers print is not among the JSON
    assert result.err == "a step\n"
    assert [run_dir.resolve() for run_dir, _ in resumed.calls] == [folder.resolve()]


def test_samplers_without_a_trainer_wait_for_it(agentrl, live_run, write, resumed, gone):
    folder, _ = live_run(pid=gone)
    sampler = Member(run_id="calm-otter", role="sample")
    write(folder, lambda store: store.join(sampler))
    refused = agentrl("runs", "resume", "calm-otter")
    assert refused.code == 2
    assert f"has lost its trainer, and {sampler.name} wait for it: start it with `agentrl train" in refused.err
    assert not resumed.calls


def test_a_silent_trainer_of_another_host_is_waited_for_and_then_replaced(agentrl, live_run, resumed):
    live_run(host="node7", pid=12, lease_s=0.01)
    result = agentrl("runs", "resume", "calm-otter")
    assert result.code == 0
    assert "waiting up to 0.01 s for a heartbeat of train on node7 (process 12)" in result.err
    assert len(resumed.calls) == 1


def test_a_member_that_beats_is_alive(live_run, write):
    folder, trainer = live_run(host="node7", lease_s=DEADLINE_S)
    notices = []

    async def act(store):
        async def beat():
            await store.beat(trainer.id, {})

        def notice(line):
            notices.append(asyncio.ensure_future(beat()))

        return await confirmed_live(store, "calm-otter", notice=notice)

    assert [member.id for member in write(folder, act)] == [trainer.id]
    assert len(notices) == 1


def test_waiting_ends_at_its_deadline_by_the_clock_alone(live_run, write):
    folder, trainer = live_run()
    now = itertools.count(0.0, 10.0)
    left = write(folder, lambda store: wait_until_left(store, "calm-otter", wait_s=15.0, clock=lambda: next(now)))
    assert [member.id for member in left] == [trainer.id]


def test_limits_of_a_live_run_are_set_and_unset(agentrl, live_run, write):
    folder, _ = live_run()
    told = agentrl("runs", "set", "calm-otter", "rollout.max_concurrent_rollouts=64", "rollout.timeout_s=9").out
    assert told.splitlines() == [
        "rollout.max_concurrent_rollouts: 64, for episodes that begin from now on, in each sampling process",
        "rollout.timeout_s: 9, for episodes that begin from now on",
    ]
    limits = write(folder, lambda store: store.control("calm-otter")).limits
    assert limits == {"rollout.max_concurrent_rollouts": 64, "rollout.timeout_s": 9.0}
    assert "limits      rollout.max_concurrent_rollouts=64" in agentrl("runs", "show", "calm-otter").out
    after = agentrl("runs", "set", "calm-otter", "rollout.timeout_s=null", "--json").json
    assert after == {"name": "calm-otter", "limits": {"rollout.max_concurrent_rollouts": 64}}


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("rollout.group_size=4", "rollout.group_size: a live run cannot change this; it takes over rollout.max_conc"),
        ("rollout.max_concurrent_rollouts=0", "rollout.max_concurrent_rollouts: expected a number above 0, found 0"),
        ("rollout.timeout_s=soon", 'rollout.timeout_s: expected a number, found the text "soon"'),
        ("trainer.save_steps=2.5", "trainer.save_steps: expected a whole number"),
        ("rollout", "rollout"),
    ],
)
def test_what_a_live_run_does_not_take_is_refused(agentrl, live_run, write, override, told):
    folder, _ = live_run()
    result = agentrl("runs", "set", "calm-otter", override)
    assert result.code == 2
    assert told in result.err
    assert "Traceback" not in result.err
    assert not write(folder, lambda store: store.control("calm-otter")).limits


def test_a_stopped_process_still_counts_as_live(live_run, write):
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        process.send_signal(signal.SIGSTOP)
        folder, trainer = live_run(pid=process.pid)
        found = write(folder, lambda store: confirmed_live(store, "calm-otter", notice=pytest.fail))
        assert [member.id for member in found] == [trainer.id]
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
