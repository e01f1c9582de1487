import asyncio
import collections
import contextlib
import math

import pytest
from tests.rollout.driving import PATIENCE_S, DrivenScheduler, stopped, until

from agentrl_core import workflow_context
from agentrl_core.api.scoring import training_step
from agentrl_core.api.stores import RunControl
from agentrl_core.config.sampling_sections import SamplingConfig
from agentrl_core.errors import ConfigError, EngineError, RunError, StoreError
from agentrl_core.rollout.scheduler import Scheduler
from agentrl_core.scorers.call import normalize_scorer
from agentrl_core.types import Outcome


@pytest.fixture
def store(watched):
    return watched


@pytest.fixture
def answers(gateway):
    """A workflow of one call whose reward `reward(here)` computes from the episode's context."""

    def make(reward=lambda here: 1.0):
        async def run(data):
            here = workflow_context.get()
            await gateway.call(here.base_url)
            return reward(here)

        return run

    return make


def train(make_scheduler, workflow, *, steps, publish=True, **options):
    """Run until `steps` steps' worth of groups have ended; the scheduler."""

    async def scenario():
        scheduler = make_scheduler(workflow, **options)
        running = asyncio.create_task(scheduler.run())
        for step in range(1, steps + 1):
            await scheduler.settled()
            if publish and step < steps:
                await scheduler.publish(step, step)
        await stopped(scheduler, running)
        return scheduler

    return asyncio.run(scenario())


def test_synchronous_training_samples_one_batch_per_version(make_scheduler, answers, store):
    train(make_scheduler, answers(), steps=3, group_size=2, tasks_per_step=2)
    assert [(group.index, group.version) for group in store.claimed] == [
        (0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2),
    ]  # fmt: skip
    assert list(store.usable.values()) == [True] * 6


def test_scorers_are_told_the_step_at_which_their_group_was_submitted(make_scheduler, make_task, gateway):
    steps = collections.defaultdict(set)

    async def run(data):
        await gateway.call(workflow_context.get().base_url)

    def scorer(request):
        steps[request.record.group_id].add(request.step)
        return 1.0

    async def scenario():
        scheduler = make_scheduler(run, group_size=2, tasks_per_step=2)
        scheduler._runner._scorer_for = lambda task: normalize_scorer(scorer, "scorer")
        running = asyncio.create_task(scheduler.run())
        for step in (1, 2, 3):
            await scheduler.settled()
            if step < 3:
                await scheduler.publish(step, step)
        trained = list(steps.values())
        steps.clear()
        await scheduler.evaluate([make_task("held")], name="heldout")
        await stopped(scheduler, running)
        return trained, list(steps.values())

    trained, evaluated = asyncio.run(scenario())
    assert sorted(trained, key=min) == [{0}, {0}, {1}, {1}, {2}, {2}]
    assert evaluated == [{None}]


def test_a_bound_lets_sampling_run_ahead(make_scheduler, answers, store):
    train(make_scheduler, answers(), steps=3, group_size=2, tasks_per_step=2, max_head_offpolicyness=2)
    versions = collections.Counter(group.version for group in store.claimed)
    assert versions == {0: 6, 1: 2, 2: 2}


def test_no_group_is_started_that_no_step_consumes(make_scheduler, answers, store):
    train(make_scheduler, answers(), steps=2, group_size=2, tasks_per_step=2, max_head_offpolicyness=3, total_steps=2)
    assert len(store.claimed) == 4


def test_discarded_groups_are_sampled_again(make_scheduler, answers, store):
    async def scenario():
        scheduler = make_scheduler(answers(), group_size=2, tasks_per_step=2)
        running = asyncio.create_task(scheduler.run())
        await scheduler.settled()
        await scheduler.supply.replace(1)
        await scheduler.publish(1, 1)
        await scheduler.settled()
        await stopped(scheduler, running)

    asyncio.run(scenario())
    assert [group.version for group in store.claimed] == [0, 0, 1, 1, 1]


def test_every_slot_of_a_group_is_one_record(make_scheduler, answers, store):
    train(make_scheduler, answers(), steps=1, group_size=4, tasks_per_step=1)
    (group,) = store.claimed
    assert sorted(record.sample_index for record in store.of(group.task_id)) == [0, 1, 2, 3]
    assert {record.group_id for record in store.now.values()} == {group.id}


def test_order_and_random_keys_follow_from_the_seed(make_scheduler, answers, store, gateway):
    def keys(**options):
        store.renew()
        gateway.sessions.clear()
        train(make_scheduler, answers(), group_size=2, tasks_per_step=3, tasks=5, **options)
        return [group.task_id for group in store.claimed], {session.seed_key for session in gateway.sessions}

    order, all_keys = keys(steps=4, seed=1)
    assert keys(steps=4, seed=1) == (order, all_keys)
    assert keys(steps=4, seed=2)[0] != order
    assert len(all_keys) == 24


def test_failed_slots_are_tried_again_and_only_those(make_scheduler, answers, store, gateway):
    tried = set()

    def reward(here):
        if here.sample_index in (1, 3) and here.sample_index not in tried:
            tried.add(here.sample_index)
            raise ValueError("first try")
        return 1.0

    scheduler = train(make_scheduler, answers(reward), steps=1, group_size=4, tasks_per_step=1)
    assert sorted((record.sample_index, record.attempt) for record in store.now.values()) == [
        (0, 0), (1, 0), (1, 1), (2, 0), (3, 0), (3, 1),
    ]  # fmt: skip
    assert list(store.usable.values()) == [True]
    assert scheduler.counts.records.totals == {"scored": 4, "failed(ValueError)": 2}
    assert len({session.seed_key for session in gateway.sessions}) == 6  # a second try is sampled anew


@pytest.mark.parametrize(("scored", "usable"), [(1, False), (2, True)])
def test_a_group_is_usable_from_two_scored_records_on(make_scheduler, answers, store, scored, usable):
    def reward(here):
        if here.task_id == "t0" and here.sample_index >= scored:
            raise ValueError
        return 1.0

    train(make_scheduler, answers(reward), steps=1, group_size=4, tasks_per_step=1, shuffle=False, retries=0)
    assert [store.usable[group.id] for group in store.claimed] == ([True] if usable else [False, True])


def test_an_unusable_group_is_replaced_by_the_next_task(make_scheduler, answers, store):
    def reward(here):
        if here.task_id == "t1":
            raise ValueError
        return 1.0

    train(make_scheduler, answers(reward), steps=1, group_size=2, tasks_per_step=3, shuffle=False, retries=1)
    assert [group.task_id for group in store.claimed] == ["t0", "t1", "t2", "t3"]
    assert len(store.of("t1")) == 4
    assert sum(store.usable.values()) == 3


def test_no_more_episodes_run_than_allowed(make_scheduler, gateway, store):
    async def scenario():
        release, now, most = asyncio.Event(), set(), []

        async def run(data, *, base_url, record_id):
            now.add(record_id)
            most.append(len(now))
            await gateway.call(base_url)
            await release.wait()
            now.remove(record_id)
            return 1.0

        scheduler = make_scheduler(run, group_size=3, tasks_per_step=4, max_concurrent_rollouts=5)
        running = asyncio.create_task(scheduler.run())
        await until(lambda: len(now) == 5)
        release.set()
        await scheduler.settled()
        await stopped(scheduler, running)
        return most

    most = asyncio.run(scenario())
    assert max(most) == 5
    assert len(most) == 12


def test_a_group_waits_for_a_free_slot_so_that_its_version_is_fresh(make_scheduler, gateway, store):
    async def scenario():
        release = asyncio.Event()

        async def run(data, *, base_url):
            await gateway.call(base_url)
            await release.wait()
            return 1.0

        scheduler = make_scheduler(
            run, group_size=2, tasks_per_step=4, max_concurrent_rollouts=4, max_head_offpolicyness=1
        )
        running = asyncio.create_task(scheduler.run())
        await until(lambda: len(gateway.sessions) == 4)
        await scheduler.publish(1, 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(store.claimed) == 2  # eight more are admitted, none has a slot
        release.set()
        await scheduler.settled()
        await stopped(scheduler, running)

    asyncio.run(scenario())
    assert [group.version for group in store.claimed] == [0] * 2 + [1] * 10


def test_a_claim_has_the_version_that_was_admitted_also_if_nobody_has_told_of_it(make_scheduler, answers, store):
    served = 0

    async def scenario():
        nonlocal served

        async def refresh():
            await asyncio.sleep(0)
            scheduler.policy_version = served

        scheduler = make_scheduler(answers(), group_size=2, tasks_per_step=2, refresh=refresh)
        running = asyncio.create_task(scheduler.run())
        await scheduler.settled()
        served = 1
        await scheduler.supply.admit(1)
        await scheduler.settled()
        await stopped(scheduler, running)

    asyncio.run(scenario())
    assert [group.version for group in store.claimed] == [0, 0, 1, 1]


def test_scorers_are_told_the_step_after_which_a_group_was_admitted(make_scheduler, gateway, store):
    """The trainer admits the next step between the scheduler's look at the control and its claim."""
    steps = collections.Counter()

    async def run(data, *, base_url):
        await gateway.call(base_url)
        steps[training_step.get()] += 1
        return 1.0

    async def scenario():
        admitted = 0

        async def refresh():
            nonlocal admitted
            if len(store.claimed) == 2 and not admitted:
                admitted = 1
                await scheduler.supply.admit(1)

        scheduler = make_scheduler(run, group_size=2, tasks_per_step=2, refresh=refresh)
        running = asyncio.create_task(scheduler.run())
        await until(lambda: len(store.claimed) == 4)
        await scheduler.settled()
        await stopped(scheduler, running)

    asyncio.run(scenario())
    assert steps == {0: 4, 1: 4}


def test_stop_cancels_what_runs_and_records_it(make_scheduler, gateway, store):
    cleaned = []

    async def scenario():
        async def run(data, *, base_url):
            await gateway.call(base_url)
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.append(True)

        scheduler = make_scheduler(run, group_size=2, tasks_per_step=2, max_concurrent_rollouts=3)
        running = asyncio.create_task(scheduler.run())
        await until(lambda: sum(len(session.interactions) for session in gateway.sessions) == 3)
        await asyncio.to_thread(scheduler.stop)
        async with asyncio.timeout(PATIENCE_S):
            await running
        return scheduler.counts.records.drain()

    assert asyncio.run(scenario()) == {"cancelled": 3}
    assert cleaned == [True] * 3
    assert [record.outcome for record in store.now.values()] == [Outcome.CANCELLED] * 3
    assert store.usable == {}


def test_cancelling_run_cleans_up_like_stop(make_scheduler, gateway, store):
    async def scenario():
        async def run(data, *, base_url):
            await gateway.call(base_url)
            await asyncio.Event().wait()

        scheduler = make_scheduler(run, group_size=2, tasks_per_step=1)
        running = asyncio.create_task(scheduler.run())
        await until(lambda: len(gateway.sessions) == 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(scenario())
    assert {record.outcome for record in store.now.values()} == {Outcome.CANCELLED}


def test_too_many_failures_stop_the_run_with_the_reasons(make_scheduler, answers, store):
    def reward(here):
        raise ValueError("the agent is broken")

    async def scenario():
        await make_scheduler(answers(reward), group_size=4, tasks_per_step=2, failure_window=8).run()

    with pytest.raises(RunError, match=r"failed\(ValueError\) 8.*the agent is broken"):
        asyncio.run(scenario())
    assert Outcome.RUNNING not in {record.outcome for record in store.now.values()}


def test_an_agent_that_cannot_work_is_slowed_down_and_stopped_where_every_failure_is_allowed(
    make_scheduler, answers, store
):
    pauses = []

    def reward(here):
        raise ValueError("the agent is broken")

    async def sleep(seconds):
        pauses.append(seconds)

    async def scenario():
        await make_scheduler(answers(reward), sleep=sleep, max_failure_rate=1.0, failure_window=80).run()

    with pytest.raises(RunError, match="80 of the last 80 episodes gave no reward"):
        asyncio.run(scenario())
    assert pauses[:63] == [0.0] * 63
    assert pauses[63:] == pytest.approx([10.0] * len(pauses[63:]), abs=1.0)
    assert len(pauses) == 79


@pytest.mark.parametrize("error", [EngineError("died"), ZeroDivisionError("ours")])
def test_a_failure_that_is_no_agents_stops_the_run(make_scheduler, answers, store, gateway, error):
    def reward(here):
        if isinstance(error, EngineError):
            gateway.fatal = error
        return 1.0

    if isinstance(error, ZeroDivisionError):

        def broken(record, **options):
            raise error

        gateway.open_session = broken

    async def scenario():
        await make_scheduler(answers(reward), group_size=2, tasks_per_step=2).run()

    with pytest.raises(type(error), match=str(error)):
        asyncio.run(scenario())


def test_a_store_that_fails_stops_the_run(make_scheduler, answers, store):
    async def full(*args, **kwargs):
        raise StoreError("disk full")

    store.finish_group = full

    async def scenario():
        await make_scheduler(answers(), group_size=2, tasks_per_step=2).run()

    with pytest.raises(StoreError, match="disk full"):
        asyncio.run(scenario())


def test_a_blocking_agent_stalls_no_other(make_scheduler, gateway, store):
    import threading

    release = threading.Event()

    def run(data, base_url):
        loop_of_the_test.call_soon_threadsafe(asyncio.ensure_future, gateway.call(base_url))
        if data["id"] == "t0":
            assert release.wait(PATIENCE_S)
        return 1.0

    async def scenario():
        nonlocal loop_of_the_test
        loop_of_the_test = asyncio.get_running_loop()
        scheduler = make_scheduler(run, group_size=2, tasks_per_step=3, shuffle=False)
        running = asyncio.create_task(scheduler.run())
        await until(lambda: len(store.usable) == 2)
        release.set()
        await scheduler.settled()
        await stopped(scheduler, running)

    loop_of_the_test = None
    asyncio.run(scenario())
    assert [record.outcome for record in store.now.values()] == [Outcome.SCORED] * 6


def test_a_mix_of_faults_is_counted_and_takes_nothing_with_it(make_scheduler, gateway, store):
    """Of every 20 first tries two raise, one hangs and one gives NaN; second tries are well."""
    number = -1

    async def run(data, *, base_url, record_id):
        nonlocal number
        await gateway.call(base_url)
        if store.now[record_id].attempt == 0:
            number += 1
            match number % 20:
                case 0 | 1:
                    raise ValueError("one of ten")
                case 2:
                    await asyncio.Event().wait()
                case 3:
                    return math.nan
        return 1.0

    scheduler = train(make_scheduler, run, steps=4, group_size=5, tasks_per_step=4, timeout_s=0.2)
    assert scheduler.counts.records.totals == {
        "scored": 80,
        "failed(ValueError)": 8,
        "timed_out": 4,
        "rejected(not_finite)": 4,
    }
    assert list(store.usable.values()) == [True] * 16


def test_scored_records_are_announced(make_scheduler, answers):
    def reward(here):
        if here.sample_index == 0:
            raise ValueError
        return 1.0

    announced = []
    train(
        make_scheduler, answers(reward), steps=1, group_size=3, tasks_per_step=1, retries=0, on_scored=announced.append
    )
    assert sorted(record.sample_index for record in announced) == [1, 2]


def test_an_impossible_group_size_is_refused(make_scheduler, answers):
    with pytest.raises(ConfigError, match="min_group_size = 2 exceeds"):
        make_scheduler(answers(), group_size=1)


@contextlib.asynccontextmanager
async def sampling(scheduler, run=DrivenScheduler.run):
    """Run a scheduler beside a block; `run=Scheduler.run`: no training step is admitted."""
    running = asyncio.create_task(run(scheduler))
    try:
        yield scheduler
    finally:
        await stopped(scheduler, running)


def test_an_evaluation_runs_each_task_once_and_reports_what_is_missing(
    make_scheduler, answers, store, gateway, make_task
):
    def reward(here):
        assert here.is_eval
        if here.task_id == "e2":
            raise ValueError
        return float(here.task_id[1:])

    parameters = SamplingConfig(temperature=0.5)

    async def scenario():
        tasks = [make_task(f"e{number}") for number in range(5)]
        scheduler = make_scheduler(answers(reward), max_concurrent_rollouts=3, seed=9, eval_sampling=parameters)
        async with sampling(scheduler, Scheduler.run):
            first = await scheduler.evaluate(tasks)
            keys = [session.seed_key for session in gateway.sessions]
            assert [session.sampling for session in gateway.sessions] == [parameters] * 5
            gateway.sessions.clear()
            scheduler.policy_version = 3
            await scheduler.evaluate(tasks[::-1])
            assert sorted(session.seed_key for session in gateway.sessions) == sorted(keys)
            assert len(set(keys)) == 5
        return first, scheduler.counts.records.drain()

    result, outcomes = asyncio.run(scenario())
    assert (result.mean, result.scored, result.failed) == ((0 + 1 + 3 + 4) / 4, 4, 1)
    assert result.error == pytest.approx(math.sqrt((4 + 1 + 1 + 4) / 3 / 4))
    assert outcomes == {"scored": 8, "failed(ValueError)": 2}
    assert all(record.is_eval for record in store.now.values())
    assert [(group.is_eval, group.version) for group in store.claimed] == [(True, 0)] * 5 + [(True, 3)] * 5


def test_an_evaluation_of_training_tasks_has_random_keys_of_its_own(make_scheduler, answers, gateway, make_task):
    async def scenario():
        async with sampling(make_scheduler(answers(), group_size=2, tasks_per_step=4)) as scheduler:
            await scheduler.settled()
            trained = {session.seed_key for session in gateway.sessions}
            gateway.sessions.clear()
            for seed in range(4):  # the seed stands where a training key has the group's index
                scheduler._seed = seed
                await scheduler.evaluate([make_task(f"t{number}") for number in range(4)], name=f"seen{seed}")
        return trained, {session.seed_key for session in gateway.sessions}

    trained, evaluated = asyncio.run(scenario())
    assert (len(trained), len(evaluated)) == (8, 16)
    assert not trained & evaluated


def test_an_evaluation_shares_the_limit_with_training(make_scheduler, gateway, make_task):
    now, most = set(), []

    async def run(data, *, base_url, record_id):
        now.add(record_id)
        most.append(len(now))
        await gateway.call(base_url)
        await asyncio.sleep(0)
        now.remove(record_id)
        return 1.0

    async def scenario():
        scheduler = make_scheduler(run, group_size=2, tasks_per_step=4, max_concurrent_rollouts=3)
        async with sampling(scheduler):
            await scheduler.evaluate([make_task(f"e{number}") for number in range(8)])
            await scheduler.settled()

    asyncio.run(scenario())
    assert max(most) == 3
    assert len(most) == 16


def test_an_evaluation_without_any_reward_is_not_a_number(make_scheduler, answers, make_task):
    async def scenario():
        async with sampling(make_scheduler(answers(lambda here: math.nan)), Scheduler.run) as scheduler:
            return await scheduler.evaluate([make_task("e0")])

    found = asyncio.run(scenario())
    assert math.isnan(found.mean)
    assert (found.scored, found.failed) == (0, 1)


def test_an_agent_that_fails_every_evaluation_stops_the_run(make_scheduler, answers, make_task):
    async def scenario():
        scheduler = make_scheduler(answers(lambda here: math.nan), failure_window=4)
        asking = asyncio.create_task(scheduler.evaluate([make_task(f"e{number}") for number in range(8)]))
        try:
            await Scheduler.run(scheduler)
        finally:
            asking.cancel()

    with pytest.raises(RunError, match=r"rejected\(not_finite\) 4"):
        asyncio.run(scenario())


def test_stop_gives_an_evaluation_back(make_scheduler, gateway, make_task, store):
    async def run(data, *, base_url):
        await gateway.call(base_url)
        await asyncio.Event().wait()

    async def scenario():
        scheduler = make_scheduler(run)
        asking = asyncio.create_task(scheduler.evaluate([make_task("e0")]))
        async with sampling(scheduler, Scheduler.run):
            await until(lambda: gateway.sessions)
        asking.cancel()
        return await store.groups("run")

    (group,) = asyncio.run(scenario())
    assert (group.state, group.member_id, group.takeovers) == ("open", "", 0)
    assert [record.outcome for record in store.now.values()] == [Outcome.CANCELLED]


def test_stop_before_and_after_a_loop_does_nothing_wrong(make_scheduler, answers):
    async def make():
        async with sampling(make_scheduler(answers(), group_size=2, tasks_per_step=1)) as scheduler:
            await scheduler.settled()
        return scheduler

    scheduler = asyncio.run(make())
    before = scheduler.counts.records.totals
    assert before["scored"] >= 2
    scheduler.obey(RunControl(wanted="pause"))
    scheduler.stop()
    assert scheduler.counts.records.totals == before

    async def stop_first():
        unbegun = make_scheduler(answers(), group_size=2, tasks_per_step=1)
        unbegun.stop()
        await unbegun.run()
        return unbegun.counts.records.totals

    assert asyncio.run(stop_first()) == {}
