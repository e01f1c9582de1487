"""The scheduler and the SQLite store together, as a run puts them."""

import asyncio

import attrs
import pytest
from tests.rollout.driving import DrivenScheduler, stopped

from agentrl_core import workflow_context
from agentrl_core.config.sampling_sections import RolloutConfig
from agentrl_core.rollout.runner import Runner
from agentrl_core.rollout.workflow_call import ResolvedWorkflow, WorkflowCall


@pytest.fixture
def database(watched):
    return watched


def test_groups_come_out_in_order_with_their_scored_records(database, gateway, make_task):
    tried = set()

    async def run(data):
        here = workflow_context.get()
        interaction = await gateway.call(here.base_url)
        await database.add_interaction("run", interaction)
        slot = here.task_id, here.sample_index
        if here.sample_index == 1 and (slot not in tried or here.task_id == "t1"):
            tried.add(slot)
            raise ValueError("first try, or always")
        return float(here.sample_index)

    config = RolloutConfig(group_size=2, tasks_per_step=2, max_concurrent_rollouts=3, requeue=0)
    runner = Runner(
        source=ResolvedWorkflow("run", WorkflowCall(run, "run")),
        gateway=gateway,
        store=database,
        scorer_for=lambda task: pytest.fail(task.id),
        config=config,
        run_id="run",
    )

    async def scenario():
        tasks = [make_task(f"t{number}") for number in range(4)]
        scheduler = DrivenScheduler(tasks=tasks, runner=runner, store=database, config=config, seed=0, shuffle=False)
        running = asyncio.create_task(scheduler.run())
        taken = [await database.take_groups("run", 2)]
        evaluated = await scheduler.evaluate([make_task("e0")])
        await scheduler.publish(1, 1)
        taken.append(await database.take_groups("run", 2))
        await stopped(scheduler, running)
        await scheduler.supply.close()
        assert await database.take_groups("run", 2) == []
        return taken, evaluated, await database.records("run")

    taken, evaluated, records = asyncio.run(scenario())
    assert [[(group.task_id, group.index, group.version) for group in groups] for groups in taken] == [
        [("t0", 0, 0), ("t2", 2, 0)],
        [("t3", 3, 1), ("t0", 4, 1)],
    ]  # t1 stays below two scored records and is dropped
    for groups in taken:
        for group in groups:
            assert [episode.record.reward for episode in group.episodes] == [0.0, 1.0]
            assert [len(episode.interactions) for episode in group.episodes] == [1, 1]
    assert (evaluated.mean, evaluated.scored, evaluated.failed) == (0.0, 1, 0)
    assert sorted((item.task_id, item.attempt) for item in records if item.outcome.value == "failed") == [
        ("t0", 0), ("t1", 0), ("t1", 1), ("t2", 0), ("t3", 0),
    ]  # fmt: skip


def test_tasks_of_training_and_evaluations_may_have_one_id(database, gateway, make_task):
    async def run(data):
        await database.add_interaction("run", await gateway.call(workflow_context.get().base_url))
        return 1.0

    config = RolloutConfig(group_size=2, tasks_per_step=1, max_concurrent_rollouts=2)
    runner = Runner(
        source=ResolvedWorkflow("run", WorkflowCall(run, "run")),
        gateway=gateway,
        store=database,
        scorer_for=lambda task: pytest.fail(task.id),
        config=config,
        run_id="run",
    )

    def task(answer):
        return attrs.evolve(make_task("1"), answer=answer)

    async def scenario():
        scheduler = DrivenScheduler(tasks=[task("trained")], runner=runner, store=database, config=config, seed=0)
        running = asyncio.create_task(scheduler.run())
        for name in ("eval", "hard"):
            await scheduler.evaluate([task(name)], name=name)
        await database.take_groups("run", 1)
        await stopped(scheduler, running)
        answers = {}
        for record in await database.records("run"):
            (found,) = await database.tasks("run", task_set=record.task_set)
            answers.setdefault((record.task_set, record.is_eval), set()).add(found.answer)
        return answers

    assert asyncio.run(scenario()) == {
        ("eval", True): {"eval"},
        ("eval.hard", True): {"hard"},
        ("train", False): {"trained"},
    }
