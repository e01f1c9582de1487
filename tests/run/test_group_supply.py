"""The trainer's operations on a store, without anything that samples."""

import asyncio

import pytest

from agentrl_core.api.group_queue import OvertakeLimits
from agentrl_core.api.stores import RunRow
from agentrl_core.run.group_supply import GroupSupply
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Task

AHEAD = OvertakeLimits(step=0, max_lag=0, per_step=1)


@pytest.fixture
def store(tmp_path):
    store = SQLiteStore(path=tmp_path / "agentrl.db")
    asyncio.run(store.create_run(RunRow(id="run", created_at=0.0, status="running", config={}, components={})))
    yield store
    asyncio.run(store.close())


def make_tasks(count):
    return [Task(id=f"t{number}", data={"id": f"t{number}", "messages": []}) for number in range(count)]


def test_a_large_data_set_is_stored_in_parts_before_sampling_begins(store):
    seen = []

    class Watched:
        async def add_tasks(self, run_id, tasks, *, task_set):
            seen.append((task_set, len(tasks), (await store.control("run")).admitted_steps))
            await store.add_tasks(run_id, tasks, task_set=task_set)

        async def admit(self, run_id, steps, *, member_id):
            await store.admit(run_id, steps, member_id=member_id)

    asyncio.run(GroupSupply(Watched(), "run").open(make_tasks(1_200), 3))
    assert seen == [("train", 500, -1), ("train", 500, -1), ("train", 200, -1)]
    assert asyncio.run(store.control("run")).admitted_steps == 3


def test_a_paused_run_takes_no_groups_until_it_goes_on(store):
    async def scenario():
        await store.set_control("run", wanted="pause")
        await store.close_sampling("run")  # so that taking would return at once
        taking = asyncio.create_task(GroupSupply(store, "run").take(1, AHEAD))
        assert not (await asyncio.wait({taking}, timeout=0.05))[0]
        await store.set_control("run", wanted="run")
        async with asyncio.timeout(30):
            return await taking

    assert list(asyncio.run(scenario())) == []


def test_an_evaluation_that_nobody_runs_ends_with_the_sampling(store):
    async def scenario():
        supply = GroupSupply(store, "run")
        asking = asyncio.create_task(supply.evaluate("heldout", make_tasks(3), version=0))
        while len(await store.groups("run")) < 3:
            await asyncio.sleep(0)
        await supply.close()
        async with asyncio.timeout(30):
            return await asking, await store.tasks("run", task_set="eval.heldout")

    found, tasks = asyncio.run(scenario())
    assert (found.scored, found.failed) == (0, 3)
    assert tasks == make_tasks(3)
