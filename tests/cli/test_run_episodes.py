"""agentrl runs cancel and requeue."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import attrs
import pytest

from agentrl_core.api.claims import Admission
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Outcome, Record

DEADLINE_S = 30.0


@pytest.fixture
def claimed(live_run, write):
    """Make a live run whose trainer has two groups with a running record each; gives the folder and the claims."""

    def make(**member):
        folder, trainer = live_run(**member)

        async def act(store):
            await store.admit("calm-otter", 1)
            claims = await claim(store, trainer.id, 2)
            for number, item in enumerate(claims):
                record = Record(
                    id=f"running-{number}",
                    run_id="calm-otter",
                    task_id=item.task_id,
                    group_id=item.group_id,
                    sample_index=0,
                    started_at=1.0,
                )
                await store.add_record(record, member_id=trainer.id)
            return claims

        return folder, write(folder, act)

    return make


async def claim(store, member_id, count):
    """Claim training groups."""
    found = await store.claim_groups(
        "calm-otter",
        member_id,
        count,
        admission=Admission(max_head_offpolicyness=1, tasks_per_step=2),
        size=1,
        version=2,
        task_at=lambda index: f"t{index}",
    )
    return [item for item in found if not item.is_eval]


def outcome(write, folder, record):
    found = write(folder, lambda store: store.episode(record)).record
    return found.outcome, found.reason


def test_the_member_that_runs_a_record_is_asked_to_end_it(agentrl, claimed, write):
    folder, _ = claimed()

    async def obey():
        store, seen = SQLiteStore(path=folder / "agentrl.db"), 0
        async with asyncio.timeout(DEADLINE_S):
            while not (asked := (await store.control("calm-otter")).cancel):
                seen = await store.changed("calm-otter", seen, timeout_s=0.05)
        record = (await store.episode(asked[0])).record
        await store.finish_record(attrs.evolve(record, outcome=Outcome.CANCELLED, reason="by_user"))
        await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(obey()))
    thread.start()
    result = agentrl("runs", "cancel", "calm-otter", "running-0", "--wait", str(DEADLINE_S))
    thread.join()
    assert (result.code, result.out) == (0, "record running-0: cancelled (by_user)\n")
    assert outcome(write, folder, "running-1") == (Outcome.RUNNING, "")
    assert write(folder, lambda store: store.control("calm-otter")).cancel == ()


def test_a_member_that_does_not_answer_is_named_and_not_asked_any_more(agentrl, claimed, write):
    folder, _ = claimed(host="node7", pid=12)
    result = agentrl("runs", "cancel", "calm-otter", "running-0", "--wait", "0")
    assert result.code == 1
    assert "record running-0 still runs after 0 s at train on node7 (process 12)" in result.err
    assert write(folder, lambda store: store.control("calm-otter")).cancel == ()


def test_a_record_of_a_process_that_is_gone_is_cancelled_in_the_store(agentrl, claimed):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    claimed(pid=process.pid)
    assert agentrl("runs", "cancel", "calm-otter", "running-0", "--json").json == {
        "record": "running-0",
        "outcome": "cancelled",
        "reason": "by_user",
    }
    again = agentrl("runs", "cancel", "calm-otter", "running-0")
    assert (again.code, again.err) == (
        2,
        "error: record running-0 has ended already (cancelled); there is nothing to cancel\n",
    )


def test_an_unknown_record_is_told_with_the_nearest(agentrl, claimed):
    claimed()
    result = agentrl("runs", "cancel", "calm-otter", "runing-0")
    assert result.code == 2
    assert "no record 'runing-0' in run calm-otter (did you mean running-" in result.err


def test_the_position_of_a_dropped_group_comes_again_whatever_its_tries(agentrl, claimed, write):
    folder, claims = claimed()
    first, second = claims

    async def drop(store):
        for number, item in enumerate(claims):
            record = (await store.episode(f"running-{number}")).record
            await store.finish_record(attrs.evolve(record, outcome=Outcome.FAILED))
            assert not await store.finish_group(item, usable=False, requeue=0)

    write(folder, drop)
    by_record = agentrl("runs", "requeue", "calm-otter", "running-1")
    assert (by_record.code, by_record.out) == (0, "task t1 (position 1) comes again\n")
    twice = agentrl("runs", "requeue", "calm-otter", second.group_id)
    assert twice.code == 2
    assert "was requeued already" in twice.err
    (again, fresh) = write(folder, lambda store: claim(store, first.member_id, 2))
    # One try more, so that its episodes get other random numbers than those of the group before.
    assert (again.index, again.task_id, again.tries, fresh.index) == (1, "t1", 1, 2)
    later = agentrl("runs", "requeue", "calm-otter", second.group_id)
    assert later.code == 2
    assert "has a later group" in later.err
    shown = agentrl("runs", "show", "calm-otter", "--json").json["groups"]["dead"]
    assert [item["group"] for item in shown] == [first.group_id]


def test_an_open_group_is_not_requeued(agentrl, claimed):
    _, (first, _) = claimed()
    result = agentrl("runs", "requeue", "calm-otter", first.group_id[:10])
    assert result.code == 2
    assert "it is open; only dead and dropped groups of training come again" in result.err


def test_a_position_that_waits_for_its_next_try_comes_at_once(agentrl, claimed, write):
    folder, (first, _) = claimed()
    assert write(folder, lambda store: store.finish_group(first, usable=False, requeue=3))
    assert write(folder, lambda store: claim(store, first.member_id, 1))[0].index == 2  # it waits for the next step
    assert agentrl("runs", "requeue", "calm-otter", first.group_id, "--json").json["index"] == 0
    assert write(folder, lambda store: claim(store, first.member_id, 1))[0].index == 0
