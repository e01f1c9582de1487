"""What the failure of one episode means for its group, and what becomes of the task of a group that failed."""

import asyncio
import math

import pytest
from tests.rollout.driving import stopped, until

from agentrl_core import workflow_context
from agentrl_core.errors import EpisodeError
from agentrl_core.types import Outcome


@pytest.fixture
def store(watched):
    return watched


@pytest.fixture
def train(make_scheduler, gateway):
    """Run a workflow of one call, `after(here)` being what it does and returns then, for some steps; the scheduler."""

    def run(after, *, steps=1, group_size=4, tasks_per_step=1, shuffle=False, **options):
        async def workflow(data):
            here = workflow_context.get()
            await gateway.call(here.base_url)
            return await after(here)

        async def scenario():
            scheduler = make_scheduler(
                workflow, group_size=group_size, tasks_per_step=tasks_per_step, shuffle=shuffle, **options
            )
            running = asyncio.create_task(scheduler.run())
            for step in range(1, steps + 1):
                await scheduler.settled()
                if step < steps:
                    await scheduler.publish(step, step)
            await stopped(scheduler, running)
            return scheduler

        return asyncio.run(scenario())

    return run


async def fail(here):
    raise ValueError("broken")


async def hang(here):
    await asyncio.Event().wait()


async def not_finite(here):
    return math.nan


async def reject(here):
    raise EpisodeError("bad_answer", "nothing to score")


async def quit_(here):
    raise SystemExit(3)


FAILURES = {
    "failed(ValueError)": fail,
    "timed_out": hang,
    "rejected(not_finite)": not_finite,
    "rejected(bad_answer)": reject,
    "failed(SystemExit)": quit_,
}


@pytest.mark.parametrize("outcome", FAILURES)
@pytest.mark.parametrize(("least", "usable"), [(2, True), (3, False)])
def test_whatever_ends_an_episode_the_others_go_on_and_enough_of_them_make_a_group(
    train, store, outcome, least, usable
):
    async def after(here):
        if here.task_id == "t0" and here.sample_index in (1, 3):
            return await FAILURES[outcome](here)
        return 1.0

    scheduler = train(after, min_group_size=least, retries=1, requeue=0, timeout_s=0.1)
    first = store.claimed[0]
    assert store.usable[first.id] is usable
    found = sorted((record.sample_index, record.attempt, record.outcome) for record in store.of("t0"))
    assert [item[:2] for item in found] == [(0, 0), (1, 0), (1, 1), (2, 0), (3, 0), (3, 1)]  # the failed ones alone
    assert scheduler.counts.records.totals[outcome] == 4
    assert len(store.claimed) == (1 if usable else 2)


def test_one_failure_ends_a_group_whose_siblings_are_to_be_cancelled(train, store, gateway):
    ended = []

    async def after(here):
        if here.task_id != "t0":
            return 1.0
        if here.sample_index == 0:
            return 1.0
        if here.sample_index == 2:
            await until(lambda: len(gateway.sessions) == 4)
            raise ValueError("broken")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(here.sample_index)

    scheduler = train(after, siblings="cancel", retries=3, requeue=0)
    assert sorted(ended) == [1, 3]
    assert all(session.closed for session in gateway.sessions)  # which aborts what it still generates
    assert [store.usable[group.id] for group in store.claimed] == [False, True]
    outcomes = {(record.sample_index, record.outcome.value, record.reason) for record in store.of("t0")}
    assert outcomes == {
        (0, "scored", ""),
        (1, "cancelled", "sibling_failed"),
        (2, "failed", "ValueError"),
        (3, "cancelled", "sibling_failed"),
    }
    assert scheduler.counts.records.totals == {"scored": 5, "failed(ValueError)": 1, "cancelled(sibling_failed)": 2}


def test_siblings_that_wait_for_a_slot_are_not_begun_to_be_cancelled(train, store):
    async def after(here):
        if here.task_id == "t0":
            raise ValueError("broken")
        return 1.0

    train(after, siblings="cancel", max_concurrent_rollouts=1, requeue=0)
    outcomes = [record.outcome for record in store.of("t0")]
    assert outcomes in ([Outcome.FAILED], [Outcome.FAILED, Outcome.CANCELLED])  # one may have got the slot meanwhile


def test_a_cancelled_group_leaves_other_groups_alone(train, store):
    async def after(here):
        if here.task_id == "t1" and here.sample_index == 0:
            raise ValueError("broken")
        return 1.0

    train(after, siblings="cancel", tasks_per_step=3, requeue=0)
    usable = {group.task_id: store.usable[group.id] for group in store.claimed}
    assert usable == {"t0": True, "t1": False, "t2": True, "t3": True}


@pytest.mark.parametrize("siblings", ["keep", "cancel"])
def test_a_fault_of_ours_stops_the_run_under_both_policies(make_scheduler, gateway, siblings):
    def broken(record, **options):
        raise ZeroDivisionError("ours")

    gateway.open_session = broken

    async def scenario():
        await make_scheduler(lambda data: 1.0, group_size=2, siblings=siblings).run()

    with pytest.raises(ZeroDivisionError, match="ours"):
        asyncio.run(scenario())


def failing(task, times, tried):
    """Return what fails the first `times` episodes of a task's slot."""

    async def after(here):
        key = here.task_id, here.sample_index
        tried[key] = tried.get(key, 0) + 1
        if here.task_id == task and tried[key] <= times:
            raise ValueError("broken")
        return 1.0

    return after


def test_a_task_whose_group_failed_comes_first_with_the_next_version(train, store, gateway):
    scheduler = train(failing("t1", 1, {}), steps=3, tasks_per_step=2, retries=0, requeue=1)
    assert [(group.task_id, group.index, group.version, store.usable[group.id]) for group in store.claimed] == [
        ("t0", 0, 0, True),
        ("t1", 1, 0, False),
        ("t2", 2, 0, True),  # in its place
        ("t1", 1, 1, True),
        ("t3", 3, 1, True),
        ("t0", 4, 2, True),
        ("t1", 5, 2, True),
    ]
    again = [record.attempt for record in store.of("t1") if record.group_id == store.claimed[3].id]
    assert again == [1] * 4
    keys = [session.seed_key for session in gateway.sessions]
    assert len(set(keys)) == len(keys) == 28  # the second try is sampled with numbers of its own
    assert scheduler.counts.groups.totals == {"sampled": 7, "unusable": 1, "requeued": 1}


@pytest.mark.parametrize(("requeue", "tries"), [(0, 1), (1, 2), (2, 3)])
def test_a_task_that_always_fails_is_given_up_after_its_budget(train, store, requeue, tries):
    scheduler = train(failing("t1", 99, {}), steps=5, tasks=20, tasks_per_step=2, retries=1, requeue=requeue)
    assert [store.usable[group.id] for group in store.claimed if group.task_id == "t1"] == [False] * tries
    attempts = {record.attempt for record in store.of("t1")}
    assert attempts == set(range(2 * tries))  # numbered on, two a group
    assert scheduler.counts.groups.totals["unusable"] == tries
    assert scheduler.counts.groups.totals.get("requeued", 0) == requeue
    assert sum(store.usable.values()) == 10  # every step had its groups


def test_order_and_keys_do_not_depend_on_which_group_fails_first(make_scheduler, store, gateway):
    def order(first):
        store.renew()
        gateway.sessions.clear()
        gates = {"t0": asyncio.Event(), "t1": asyncio.Event()}

        async def workflow(data):
            here = workflow_context.get()
            await gateway.call(here.base_url)
            if here.task_id in gates and not gates[here.task_id].is_set():
                await gates[here.task_id].wait()
                raise ValueError("broken")
            return 1.0

        async def scenario():
            scheduler = make_scheduler(
                workflow, tasks=9, group_size=2, tasks_per_step=2, retries=0, requeue=1, shuffle=False
            )
            running = asyncio.create_task(scheduler.run())
            await until(lambda: sum(len(session.interactions) for session in gateway.sessions) == 4)
            gates[first].set()
            await until(lambda: len(store.usable) >= 1)
            for gate in gates.values():
                gate.set()
            for step in (1, 2, 3):
                await scheduler.settled()
                await scheduler.publish(step, step)
            await scheduler.settled()
            await stopped(scheduler, running)

        asyncio.run(scenario())
        return [(g.task_id, g.index, g.version) for g in store.claimed], {s.seed_key for s in gateway.sessions}

    one, other = order("t0"), order("t1")
    assert one == other
    assert one[0][4:6] == [("t0", 0, 1), ("t1", 1, 1)]
