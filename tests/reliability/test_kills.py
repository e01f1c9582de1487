import asyncio
import os
import sys

import pytest
from tests.reliability.account import Account
from tests.reliability.chaos import Chaos, Faults
from tests.reliability.worker import Sampler, train

from agentrl_core.api.members import Member
from agentrl_core.errors import MemberError
from agentrl_core.run.membership import Watch

pytestmark = pytest.mark.slow

RECORDS = int(os.environ.get("AGENTRL_TEST_RECORDS", "1024"))
"""Records to train in a SQLite file."""
MONGO_SHARE = 4
"""The server of these tests is that many times slower, so its run has as many times fewer records."""
PER_STEP = 64


async def buried(store, run):
    """Watch until no dead process counts as a member any more."""
    watch = Watch(store, run.name)
    while await store.members(run.name, live=True):
        await watch.look(0.5)
        await asyncio.sleep(0.5)  # the period of looks that a watcher has


async def account_of(run, store):
    await asyncio.wait_for(buried(store, run), 20 * run.lease_s)
    account = await Account.of(store, run.name)
    await store.close()
    return account


def carried_out(make_run, capsys, faults, **options):
    """Return the run, its chaos and its account, and print the table of faults."""
    with asyncio.Runner() as runner:
        run, store = runner.run(make_run(**options))
        chaos = Chaos(run, faults)
        chaos.carry_out()
        account = runner.run(account_of(run, store))
    with capsys.disabled():
        sys.stdout.write("\n" + "".join(f"  {name:40} {value}\n" for name, value in account.table(run, chaos)))
    assert account.problems(run, chaos) == []
    return run, chaos, account


def test_nothing_is_lost_or_trained_twice_whoever_is_killed_every_3_s(make_run, place, capsys):
    """Eight samplers and a trainer on two hosts; a member of another host is lost with its lease."""
    records = RECORDS // (MONGO_SHARE if "url" in place["options"] else 1)
    # Bounded, so that a busy machine, on which members take long to start, comes to the end too.
    kills = max(6, records // 85)
    run, chaos, account = carried_out(
        make_run, capsys, Faults(every_s=3.0, kills=kills), steps=records // PER_STEP, tasks_per_step=PER_STEP // 4,
        samplers=8, hosts=2, episode_s=2.0, step_s=0.2, save_steps=1,
    )  # fmt: skip
    assert sum(chaos.kills.values()) >= min(kills, chaos.wall_s // 3 - 1)
    assert len(account.trained) == records == run.steps * PER_STEP


def test_a_killed_sampler_leaves_only_lost_records(make_run, capsys):
    _, chaos, account = carried_out(make_run, capsys, Faults(roles=["sample"], kills=8), steps=6, tasks_per_step=8)
    # A trainer that resumes would cancel them, too.
    assert {record.reason for record in account.records} <= {"", "lost"}
    assert sum(chaos.kills.values()) >= 5


class Paused:
    """A store whose user waits before one of its calls."""

    def __init__(self, store, name, before):
        self._store, self._name, self._before = store, name, before

    def __getattr__(self, name):
        real = getattr(self._store, name)
        if name != self._name:
            return real

        async def call(*arguments, **named):
            await self._before(*arguments)
            return await real(*arguments, **named)

        return call


def test_a_trainer_that_wakes_after_its_successor_has_begun_trains_nothing(make_run):
    """As after SIGSTOP, in the worst moment: its groups are ready again, and its step is not taken yet."""
    suspended, resumed = asyncio.Event(), asyncio.Event()

    async def before_step(row):
        if row.step == 3:
            suspended.set()
            await resumed.wait()

    async def scenario():
        run, store = await make_run(steps=6, tasks_per_step=2, save_steps=2)
        sampler, first, second = (Member(run_id=run.name, role=role) for role in ("sample", "train", "train"))
        await store.join(sampler)
        sampling = asyncio.create_task(Sampler(run, store, sampler.id).sample())
        await store.join(first)
        former = asyncio.create_task(train(run, Paused(store, "add_step", before_step), first.id))
        await suspended.wait()
        await store.declare_lost(first.id, beats=0)
        await store.join(second)

        async def before_admission(*_):
            resumed.set()
            await asyncio.wait({former})

        await train(run, Paused(store, "admit", before_admission), second.id)
        with pytest.raises(MemberError, match="declared lost"):
            await former
        await sampling
        for member in (sampler, second):
            await store.leave(member.id)
        account = await Account.of(store, run.name)
        await store.close()
        assert account.problems(run, Chaos(run, Faults())) == []
        assert sum(step.voided for step in account.steps) == 0

    asyncio.run(asyncio.wait_for(scenario(), 120))
