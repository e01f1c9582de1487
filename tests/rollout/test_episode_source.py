"""A source that the runner has never heard of runs episodes like the built-in ones."""

import asyncio
import contextlib

import pytest
from tests.rollout.driving import DrivenScheduler, stopped, until

from agentrl_core.api import context as workflow_context
from agentrl_core.config.sampling_sections import RolloutConfig
from agentrl_core.errors import EpisodeError
from agentrl_core.rollout.episode_source import CallSeat, EpisodeSource, Seat
from agentrl_core.rollout.runner import Runner
from agentrl_core.types import Outcome


class Sandboxes(EpisodeSource):
    """Gives each episode a sandbox of its own, and each group an image that its sandboxes share."""

    def __init__(self, agent, *, count=2, tasks=()):
        self.agent, self.tasks = agent, list(tasks)
        self.brings_tasks = bool(tasks)
        self.free = list(range(count))
        self._any = asyncio.Semaphore(count)
        self.images, self.log = {}, []

    @contextlib.asynccontextmanager
    async def group(self, group_id, task):
        if task is None and not self.tasks:
            await asyncio.Event().wait()
        task = task or self.tasks.pop(0)
        self.images[group_id] = f"image of {task.id}"
        try:
            yield task
        finally:
            del self.images[group_id]
            self.log.append(f"end of {task.id}")

    @contextlib.asynccontextmanager
    async def seat(self, task, record):
        async with self._any:
            sandbox = self.free.pop()
            image = self.images.get(record.group_id)
            try:
                yield CallSeat(lambda data, injected: self.agent(data, injected["base_url"], (sandbox, image)))
            finally:
                self.free.append(sandbox)
                self.log.append(f"episode of {task.id}")


@pytest.fixture
def make(store, gateway):
    def make(source, *, store=store, **config):
        return Runner(
            source=source,
            gateway=gateway,
            store=store,
            scorer_for=lambda task: pytest.fail(task.id),
            config=RolloutConfig(**config),
            run_id="run",
            grace_s=0.1,
        )

    return make


def episode(runner, task):
    return runner.run_episode(task, group_id="g", sample_index=0, seed_key=(1,))


def test_each_episode_has_a_seat_of_its_own(make, make_task, gateway, store):
    used, together = [], asyncio.Barrier(2)

    async def agent(data, base_url, place):
        assert workflow_context.get().task_id == data["id"]
        used.append(place)
        await together.wait()
        assert sorted(used) == [(0, None), (1, None)]
        await together.wait()
        used.remove(place)
        await gateway.call(base_url)
        return 0.5

    async def scenario():
        source = Sandboxes(agent)
        runner = make(source)
        return source, await asyncio.gather(*(episode(runner, make_task(f"t{number}")) for number in range(4)))

    source, episodes = asyncio.run(scenario())
    assert [(item.record.outcome, item.record.reward) for item in episodes] == [(Outcome.SCORED, 0.5)] * 4
    assert [len(item.interactions) for item in episodes] == [1] * 4
    assert (sorted(source.free), len(store.records)) == ([0, 1], 4)


def test_the_seat_is_given_back_however_the_episode_ends(make, make_task, gateway):
    async def agent(data, base_url, place):
        if data["id"] == "raises":
            raise ValueError("no such file")
        await asyncio.Event().wait()

    async def scenario():
        source = Sandboxes(agent, count=1)
        ended = [await episode(make(source, timeout_s=0.05), make_task(name)) for name in ("raises", "hangs")]
        cancelled = asyncio.create_task(episode(make(source), make_task("cancelled")))
        while not any(session.record.task_id == "cancelled" for session in gateway.sessions):
            await asyncio.sleep(0)
        assert source.free == []
        cancelled.cancel()
        await asyncio.wait({cancelled})
        return source.free, [item.record.outcome for item in ended], cancelled.cancelled()

    assert asyncio.run(scenario()) == ([0], [Outcome.FAILED, Outcome.TIMED_OUT], True)


def test_a_seat_without_a_session_rejects_its_episode(make, make_task):
    class Broken(CallSeat):
        async def open_session(self, gateway, record, *, seed_key, sampling):
            raise EpisodeError("no_sandbox", "the sandbox did not start")

    class Source(EpisodeSource):
        @contextlib.asynccontextmanager
        async def seat(self, task, record):
            yield Broken(lambda data, injected: pytest.fail("the agent ran"))

    record = asyncio.run(episode(make(Source()), make_task())).record
    assert (record.outcome, record.reason, record.detail) == (
        Outcome.REJECTED,
        "no_sandbox",
        "the sandbox did not start",
    )


@pytest.mark.parametrize("brought", [False, True])
def test_a_group_begins_before_its_episodes_and_ends_after_them(make, make_task, gateway, watched, brought):
    """With the run's tasks, and with tasks that the source brings."""
    images, tasks = [], [make_task("t0"), make_task("t1")]

    async def agent(data, base_url, place):
        images.append((data["id"], place[1]))
        await gateway.call(base_url)
        return 1.0

    async def scenario():
        source = Sandboxes(agent, tasks=tasks if brought else ())
        config = RolloutConfig(group_size=2, tasks_per_step=2, max_concurrent_rollouts=4)
        scheduler = DrivenScheduler(
            tasks=() if brought else tasks,
            runner=make(source, store=watched),
            store=watched,
            config=config,
            seed=0,
            shuffle=False,
        )
        running = asyncio.create_task(scheduler.run())
        await until(lambda: len(watched.usable) == 2)
        await scheduler.evaluate([make_task("held out")], name="eval")
        await stopped(scheduler, running)
        return source

    source = asyncio.run(scenario())
    names = ("t0", "t1", "held out")
    assert sorted(images) == sorted((name, f"image of {name}") for name in ("t0", *names, "t1"))
    assert source.images == {}
    for name in names:
        assert [line for line in source.log if name in line][-1] == f"end of {name}"


def test_a_source_that_brings_no_tasks_needs_them(make):
    class Source(EpisodeSource):
        seat = None

    async def scenario():
        async with Source().group("g", None):
            pytest.fail("a group without a task")

    with pytest.raises(TypeError, match="group g has no task, and Source brings none"):
        asyncio.run(scenario())


def test_a_source_without_seats_and_a_seat_that_runs_nothing_cannot_be_made():
    class Source(EpisodeSource):
        """Lacks `seat`."""

    class Idle(Seat):
        """Lacks `run`."""

    for incomplete, method in ((Source, "seat"), (Idle, "run")):
        with pytest.raises(TypeError, match=f"abstract method '?{method}"):
            incomplete()
