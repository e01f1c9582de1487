"""The scheduler takes over claims of others, gives up lost ones, and obeys `RunControl`."""

import asyncio
import contextlib

import attrs
import pytest
from tests.rollout.driving import MEMBER, DrivenScheduler, stopped, until

from agentrl_core import workflow_context
from agentrl_core.api.claims import Admission
from agentrl_core.api.members import Member
from agentrl_core.config.sampling_sections import RolloutConfig
from agentrl_core.errors import ClaimLostError, MemberError, RunError, StoreError
from agentrl_core.rollout.order import TaskOrder
from agentrl_core.rollout.scheduler import CONCURRENCY
from agentrl_core.rollout.workflow_call import ResolvedWorkflow
from agentrl_core.types import Outcome, Record


@pytest.fixture
def store(watched):
    return watched


@contextlib.asynccontextmanager
async def sampling(scheduler):
    running = asyncio.create_task(scheduler.run())
    try:
        yield scheduler
    finally:
        await stopped(scheduler, running)


@pytest.fixture
def one(gateway):
    """A workflow of one call."""

    async def run(data):
        await gateway.call(workflow_context.get().base_url)
        return 1.0

    return run


async def claimed_by_other(store, make_task, *, count=1, size=3, limit=1):
    """A second member, and the groups that it has claimed, of the tasks in their order."""
    other = Member(run_id="run", role="sample", id="other")
    tasks = [make_task(f"t{number}") for number in range(4)]
    await store.join(other)
    await store.add_tasks("run", tasks)
    await store.admit("run", 0)
    claims = await store.claim_groups(
        "run",
        other.id,
        count,
        admission=Admission(max_head_offpolicyness=0, tasks_per_step=limit),
        size=size,
        version=0,
        task_at=TaskOrder(tasks, seed=0, shuffle=False).id_at,
    )
    store.claimed.clear()
    return other, claims


async def recorded(store, claim, slot, outcome):
    record = Record(
        id=f"theirs-{slot}", run_id="run", task_id=claim.task_id, group_id=claim.group_id, sample_index=slot
    )
    await store.add_record(record, member_id=claim.member_id)
    if outcome is not Outcome.RUNNING:
        await store.finish_record(attrs.evolve(record, outcome=outcome, reward=1.0))


@pytest.mark.parametrize("siblings", ["keep", "cancel"])
def test_a_group_of_a_lost_member_goes_on_where_it_was(make_scheduler, store, gateway, make_task, siblings, one):
    """Slot 0 is scored, 1 was running, 2 had not begun. The others get the random numbers that they would have had."""

    async def scenario():
        other, (claim,) = await claimed_by_other(store, make_task)
        await recorded(store, claim, 0, Outcome.SCORED)
        await recorded(store, claim, 1, Outcome.RUNNING)
        (member,) = [item for item in await store.members("run") if item.id == other.id]
        assert await store.declare_lost(other.id, beats=member.beats)
        scheduler = make_scheduler(one, group_size=3, tasks_per_step=1, shuffle=False, siblings=siblings)
        async with sampling(scheduler):
            await scheduler.settled()
            (group,) = await store.take_groups("run", 1)
        assert scheduler.counts.groups.totals == {"sampled": 1}
        return claim, group

    claim, group = asyncio.run(scenario())
    assert group.id == claim.group_id
    assert [episode.record.sample_index for episode in group.episodes] == [0, 1, 2]
    assert group.episodes[0].record.id == "theirs-0"
    assert [session.seed_key[2:] for session in gateway.sessions] == [(0, 1, 0), (0, 2, 0)]
    assert len(store.claimed) == 1


def test_a_group_whose_slots_are_all_scored_only_ends(make_scheduler, store, gateway, make_task, one):
    async def scenario():
        other, (claim,) = await claimed_by_other(store, make_task)
        for slot in range(3):
            await recorded(store, claim, slot, Outcome.SCORED)
        await store.leave(other.id)
        scheduler = make_scheduler(one, group_size=3, tasks_per_step=1, shuffle=False)
        async with sampling(scheduler):
            await scheduler.settled()
            return await store.take_groups("run", 1)

    (group,) = asyncio.run(scenario())
    assert [episode.record.id for episode in group.episodes] == ["theirs-0", "theirs-1", "theirs-2"]
    assert gateway.sessions == []


@pytest.mark.parametrize("at", ["an episode", "the end"])
def test_a_group_that_another_member_has_now_is_left_to_it(make_scheduler, store, gateway, make_task, at):
    """Nothing is counted as failed; the other groups go on."""
    taken = asyncio.Event()

    async def agent(data):
        here = workflow_context.get()
        await gateway.call(here.base_url)
        if here.task_id == "t0":
            await taken.wait()
            if at == "an episode":
                raise ValueError("tried again, which needs a record")
        return 1.0

    async def scenario():
        await store.join(Member(run_id="run", role="sample", id="other"))
        scheduler = make_scheduler(agent, group_size=2, tasks_per_step=2, shuffle=False, retries=1)
        async with sampling(scheduler):
            await until(lambda: len(gateway.sessions) == 4)
            (claim,) = [item for item in scheduler._groups.values() if item.task_id == "t0"]
            async with store._transaction("give a group to another member") as db:
                db.execute("UPDATE groups SET member_id = 'other' WHERE id = ?", (claim.group_id,))
            taken.set()
            await until(lambda: not scheduler._groups)
        return scheduler.counts

    counts = asyncio.run(scenario())
    assert counts.groups.totals == {"sampled": 1}
    assert list(store.usable.values()) == [True]
    expected = {"scored": 2, "failed(ValueError)": 2} if at == "an episode" else {"scored": 4}
    assert counts.records.totals == expected


def test_a_member_that_is_lost_stops_with_the_reason(make_scheduler, store, gateway):
    async def agent(data):
        await gateway.call(workflow_context.get().base_url)
        await asyncio.Event().wait()

    async def scenario():
        scheduler = make_scheduler(agent, group_size=2, tasks_per_step=1)
        running = asyncio.create_task(scheduler.run())
        await until(lambda: len(gateway.sessions) == 2)
        scheduler.stop(MemberError("declared lost"))
        with pytest.raises(MemberError, match="declared lost"):
            await running
        return await store.groups("run")

    (group,) = asyncio.run(scenario())
    assert (group.state, group.member_id) == ("open", "")
    assert {record.outcome for record in store.now.values()} == {Outcome.CANCELLED}


def test_a_member_that_was_declared_lost_claims_nothing(make_scheduler, store, gateway, one):
    async def scenario():
        assert await store.declare_lost(MEMBER.id, beats=0)
        await make_scheduler(one, group_size=2, tasks_per_step=1).run()

    with pytest.raises(ClaimLostError, match=MEMBER.id):
        asyncio.run(scenario())


def test_two_members_sample_what_one_would(make_scheduler, store, gateway, one):
    """Each position once, with the same random keys, whoever has it."""

    def keys(members):
        gateway.sessions.clear()

        async def scenario():
            await store.join(Member(run_id="run", role="sample", id="other"))
            all_of_them = [make_scheduler(one, tasks=9, group_size=2, tasks_per_step=6, seed=3) for _ in range(members)]
            for scheduler in all_of_them[1:]:
                scheduler._member_id = "other"
            async with contextlib.AsyncExitStack() as stack:
                for scheduler in all_of_them:
                    await stack.enter_async_context(sampling(scheduler))
                for step in (1, 2):
                    for scheduler in all_of_them:
                        await scheduler.settled()
                    await all_of_them[0].publish(step, step)
                for scheduler in all_of_them:
                    await scheduler.settled()

        asyncio.run(scenario())
        return {session.seed_key for session in gateway.sessions}, len(gateway.sessions)

    alone = keys(1)
    store.renew()
    assert keys(2) == alone
    assert alone[1] == 36


def test_a_pause_begins_no_episode_and_a_limit_holds_at_once(make_scheduler, store, gateway):
    gates = [asyncio.Event() for _ in range(9)]
    begun = iter(gates)

    async def agent(data):
        gate = next(begun)
        await gateway.call(workflow_context.get().base_url)
        await gate.wait()
        return 1.0

    async def scenario():
        scheduler = make_scheduler(agent, group_size=3, tasks_per_step=3, max_concurrent_rollouts=2)
        async with sampling(scheduler):
            await until(lambda: len(gateway.sessions) == 2)
            await store.set_control("run", wanted="pause")
            await until(lambda: scheduler._slots.limit == 0)
            gates[0].set()
            await until(lambda: scheduler._slots._used == 1)
            assert len(gateway.sessions) == 2
            await store.set_control("run", wanted="run", limits={CONCURRENCY: 4})
            await until(lambda: len(gateway.sessions) == 5)
            assert scheduler._slots._used == 4
            await store.set_control("run", limits={CONCURRENCY: None})
            await until(lambda: scheduler._slots.limit == 2)
            for gate in gates:
                gate.set()
            await scheduler.settled()
        return scheduler.counts.records.totals

    assert asyncio.run(scenario()) == {"scored": 9}


def test_a_record_that_someone_cancelled_is_sampled_again_and_counts_as_no_failure(make_scheduler, store, gateway):
    async def agent(data):
        here = workflow_context.get()
        await gateway.call(here.base_url)
        if here.sample_index == 1 and store.now[here.record_id].attempt == 0:
            await store.finish_record(
                attrs.evolve(store.now[here.record_id], outcome=Outcome.CANCELLED, reason="by a person")
            )
        return 1.0

    async def scenario():
        scheduler = make_scheduler(agent, group_size=2, tasks_per_step=1, retries=1)
        async with sampling(scheduler):
            await scheduler.settled()
            (group,) = await store.take_groups("run", 1)
        return group, scheduler.counts.records.totals

    group, totals = asyncio.run(scenario())
    assert [(episode.record.sample_index, episode.record.attempt) for episode in group.episodes] == [(0, 0), (1, 1)]
    assert totals == {"scored": 2, "cancelled(by a person)": 1}


def test_sampling_ends_when_the_trainer_closes_it(make_scheduler, store, gateway, one):
    async def scenario():
        scheduler = make_scheduler(one, group_size=2, tasks_per_step=1)
        running = asyncio.create_task(scheduler.run())
        await scheduler.settled()
        await scheduler.supply.close()
        await running

    asyncio.run(scenario())
    assert list(store.usable.values()) == [True]


def test_the_pipeline_is_as_deep_as_allowed(make_scheduler, store, gateway, one):
    """With a bound of 4 versions, 10 groups could be in flight; the depth of 1 allows one more than a step's two."""

    async def scenario():
        scheduler = make_scheduler(one, group_size=2, tasks_per_step=2, max_head_offpolicyness=4, pipeline_depth=1)
        async with sampling(scheduler):
            await scheduler.settled()
            assert len(store.claimed) == 3
            await scheduler.publish(1, 1)
            await scheduler.settled()
            assert len(store.claimed) == 3  # nothing was trained

    asyncio.run(scenario())


def test_other_tasks_at_a_position_end_the_run_with_both_names(make_scheduler, store, gateway, make_task, one):
    async def scenario():
        other, _ = await claimed_by_other(store, make_task)
        await store.leave(other.id)
        scheduler = make_scheduler(one, group_size=3, tasks_per_step=1, tasks=3, seed=5)
        await scheduler.run()

    with pytest.raises(RunError, match=r"position 0 of the run is the task 't0', and in this process 't[12]'"):
        asyncio.run(scenario())


def test_an_evaluation_of_a_task_that_the_store_lacks_is_an_error(make_scheduler, store, gateway, one):
    async def scenario():
        await store.add_evaluation("run", "eval", ["nowhere"], version=0)
        await make_scheduler(one, group_size=2).run()

    with pytest.raises(StoreError, match="lacks the task 'nowhere' of the set 'eval'"):
        asyncio.run(scenario())


class Bringing(ResolvedWorkflow):
    """Stands for online agents, which bring the tasks."""

    brings_tasks = True


def test_a_group_of_an_online_agent_goes_on_at_another_member(make_runner, store, gateway, make_task, one):
    """The task came with the first agent, so the second member reads it from the store."""
    seen = []

    async def agent(data):
        seen.append(data["id"])
        return await one(data)

    async def scenario():
        other = Member(run_id="run", role="sample", id="other")
        await store.join(other)
        await store.add_tasks("run", [make_task("brought")])
        await store.admit("run", 0)
        admission = Admission(max_head_offpolicyness=0, tasks_per_step=1)
        (claim,) = await store.claim_groups("run", other.id, 1, admission=admission, size=2, version=0, task_at=None)
        await store.begin_group(claim, "brought")
        await store.leave(other.id)
        config = RolloutConfig(group_size=2, tasks_per_step=1)
        runner = make_runner(agent, group_size=2)
        runner.source = Bringing("workflow", runner.source.call)
        scheduler = DrivenScheduler(tasks=(), runner=runner, store=store, config=config, seed=0)
        async with sampling(scheduler):
            (group,) = await store.take_groups("run", 1)
        return group

    group = asyncio.run(scenario())
    assert (group.task_id, group.index, seen) == ("brought", 0, ["brought"] * 2)
