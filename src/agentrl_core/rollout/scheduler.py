"""Start the groups of a run in a fixed order, as far ahead of the learner as the staleness bound allows.

Synchronous training is asynchronous training with a bound of 0; there is one code path. Nothing polls: the loop wakes
when an episode or a group ends, and when the learner publishes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from agentrl_core.api.scoring import training_step
from agentrl_core.errors import ConfigError, RunError
from agentrl_core.rollout.capacity import Capacity
from agentrl_core.rollout.episode_source import SlotNotTaken
from agentrl_core.rollout.failures import root_cause
from agentrl_core.rollout.order import QueuedTask, TaskOrder, TaskQueue, stable_hash
from agentrl_core.rollout.outcome_counts import OutcomeCounts
from agentrl_core.rollout.run_agent import SIBLING_FAILED, cancelled_for
from agentrl_core.types import Evaluation, Outcome, Record, Task

if TYPE_CHECKING:
    from agentrl_core.api.stores import Store
    from agentrl_core.config.schema import RolloutConfig, SamplingConfig
    from agentrl_core.rollout.runner import Runner

T = TypeVar("T")

logger = logging.getLogger(__name__)

_TASKS_AT_ONCE = 500
"""Task rows that are stored between two turns of the event loop."""
_StartSlot: TypeAlias = "Callable[[asyncio.TaskGroup, int, int], asyncio.Task[Record | None]]"
"""Function that starts one episode in a task group, given slot and attempt number. Its record is None if no online
agent took the slot."""


class Scheduler:
    """Runs the groups of a training run, and evaluations, within one limit of concurrent episodes.

    `run` and `evaluate` belong to the agents' event loop; all other methods may be called from any thread. The same
    seed submits the same tasks in the same order with the same random keys. A resumed run continues that order from
    `start_index`, after the earlier positions in `left` (position -> tries), which were not finished. A task whose
    group ended unusable is put back up to `rollout.requeue` times and comes again with the next policy version. With
    `total_steps`, no group is sampled that no step would consume. `on_scored(record)`, and for every outcome
    `on_ended(record)`, are called on the agents' loop. Without tasks, the runner's source brings
    them.
    """

    def __init__(
        self,
        *,
        tasks: Sequence[Task],
        runner: Runner,
        store: Store,
        config: RolloutConfig,
        run_id: str,
        seed: int,
        start_index: int = 0,
        left: Mapping[int, int] | None = None,
        shuffle: bool = True,
        total_steps: int | None = None,
        on_scored: Callable[[Record], None] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        on_ended: Callable[[Record], None] | None = None,
    ) -> None:
        if config.min_group_size > config.group_size:
            raise ConfigError(
                f"rollout.min_group_size = {config.min_group_size} exceeds rollout.group_size = {config.group_size}: "
                "no group could ever be used"
            )
        self._tasks = tasks
        self._source = runner.source
        order = None if self._source.brings_tasks and not tasks else TaskOrder(tasks, seed=seed, shuffle=shuffle)
        self._planned = order is not None
        self._queue = TaskQueue(order, start_index=start_index, left=left, requeue=config.requeue)
        self._runner, self._store, self._config, self._run_id = runner, store, config, run_id
        self._on_scored, self._on_ended, self._sleep = on_scored, on_ended, sleep
        self.counts = OutcomeCounts(config)
        """Endings of records and groups so far; may be read from any thread."""
        self._capacity = Capacity(
            max_head_offpolicyness=config.max_head_offpolicyness,
            tasks_per_step=config.tasks_per_step,
            total_steps=total_steps,
        )
        self._version = 0
        self._slots = asyncio.Semaphore(config.max_concurrent_rollouts)
        # Episodes that hold a slot, wait for one, or are about to.
        self._pending = 0
        self._groups: set[asyncio.Task[None]] = set()
        self._evaluations: set[asyncio.Task[object]] = set()
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begun = self._stopping = False
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Run groups until `stop`; at the end cancel the running ones and close the store's sampling.

        Raises errors that no episode is to blame for: `RunError` (too many failures, engine, store), or a programming
        error.
        """
        self._loop, self._begun = asyncio.get_running_loop(), True
        try:
            await self._add_tasks(self._tasks)
            while not self._halted:
                # Before filling: an event that arrives during `_fill` must wake the loop once more.
                self._wake.clear()
                await self._fill()
                await self._wake.wait()
        finally:
            await self._cancel_groups()
            await self._store.close_sampling(self._run_id)
        if self._error is not None:
            raise self._error

    def publish(self, version: int, steps_done: int) -> None:
        """Announce that the engine samples from `version` after `steps_done` optimizer steps.

        Before `run`, this sets the point at which a resumed run continues.
        """
        if not self._begun:
            self._version = version
            self._capacity.go_on_after(steps_done)
        else:
            self._on_loop(self._published, version, steps_done)

    def replace(self, groups: int) -> None:
        """Sample `groups` more groups for this step, in place of groups that were taken and then filtered out."""
        self._on_loop(self._replaced, groups)

    def stop(self) -> None:
        """Start no more episodes and cancel the running ones; `run` returns once their records are stored."""
        self._stopping = True
        self._on_loop(self._stopped)

    async def evaluate(
        self, tasks: Sequence[Task], *, name: str, seed: int, sampling: SamplingConfig | None = None
    ) -> Evaluation:
        """Run every task once and return the mean reward; `name` is that of their set in `data.eval`, else `eval`.

        The random keys depend on `seed` and the task alone, so evaluations compare policies on equal terms. `sampling`
        replaces the policy's own sampling parameters. Raises as `run` does.
        """
        self._loop = asyncio.get_running_loop()
        if self._stopping:
            raise RunError(f"evaluation '{name}' was requested after the scheduler was stopped")
        this = asyncio.current_task()
        if this is not None:
            self._evaluations.add(this)
        try:
            task_set = name if name == "eval" else f"eval.{name}"
            await self._add_tasks(tasks, task_set)
            async with asyncio.TaskGroup() as group:
                running = [
                    self._spawn(group, self._evaluate_one(task, task_set, index, seed, sampling))
                    for index, task in enumerate(tasks)
                ]
        except BaseExceptionGroup as errors:
            # A TaskGroup wraps even a single error; callers handle the error itself.
            raise root_cause(errors) from None
        finally:
            if this is not None:
                self._evaluations.discard(this)
        rewards = [reward for item in running if (reward := item.result().reward) is not None]
        found = Evaluation.of(rewards, failed=len(tasks) - len(rewards))
        logger.info("evaluation '%s': mean reward %.4f, %d of %d scored", name, found.mean, len(rewards), len(tasks))
        return found

    @property
    def _halted(self) -> bool:
        return self._stopping or self._error is not None

    async def _add_tasks(self, tasks: Sequence[Task], task_set: str = "train") -> None:
        """Store task rows in parts, so that a large data set does not hold up the event loop."""
        for start in range(0, len(tasks), _TASKS_AT_ONCE):
            await self._store.add_tasks(self._run_id, tasks[start : start + _TASKS_AT_ONCE], task_set=task_set)
            await asyncio.sleep(0)

    async def _fill(self) -> None:
        """Start groups while the staleness bound admits them and an episode slot is free.

        A group does not start before one of its episodes can: its recorded version is the one that it samples from.
        """
        while not self._halted and self._pending < self._config.max_concurrent_rollouts and self._capacity.groups() > 0:
            group_id = uuid.uuid4().hex[:16]
            self._capacity.started()
            self._pending += self._config.group_size
            if self._planned:
                turn = self._queue.next()
                await self._add_group(turn, group_id)
                running = asyncio.create_task(self._run_planned_group(turn, group_id))
            else:
                running = asyncio.create_task(self._run_unplanned_group(group_id))
            self._groups.add(running)
            running.add_done_callback(self._group_ended)

    async def _add_group(self, turn: QueuedTask, group_id: str) -> None:
        size, version = self._config.group_size, self._version
        await self._store.add_group(self._run_id, group_id, turn.task.id, index=turn.index, size=size, version=version)

    async def _run_planned_group(self, turn: QueuedTask, group_id: str) -> None:
        async with self._source.group(group_id, turn.task):
            await self._run_group(turn, group_id)

    async def _run_unplanned_group(self, group_id: str) -> None:
        """Run a group on the task that the source brings."""
        async with self._source.group(group_id, None) as task:
            await self._add_tasks([task])
            turn = self._queue.turn_for(task)
            await self._add_group(turn, group_id)
            await self._run_group(turn, group_id)

    async def _run_group(self, turn: QueuedTask, group_id: str) -> None:
        """Run a group to its end; put the task of an unusable group back."""
        # Until here the group's episodes were counted in advance, so that `_fill` did not start too many groups. From
        # now on `_spawn` counts each of them.
        self._pending -= self._config.group_size
        # Each group is an asyncio task with its own context, so this value is seen by its episodes alone.
        training_step.set(self._capacity.steps_done)

        def start(group: asyncio.TaskGroup, slot: int, attempt: int) -> asyncio.Task[Record | None]:
            return self._spawn(group, self._run_slot(turn, group_id, slot, attempt))

        usable = await _run_slots(start, self._config, tries=turn.tries)
        await self._store.finish_group(self._run_id, group_id, usable=usable)
        requeued = not usable and self._queue.put_back(turn)
        self.counts.add_group(usable=usable, requeued=requeued)
        self._capacity.finished(usable=usable)

    async def _run_slot(self, turn: QueuedTask, group_id: str, slot: int, attempt: int) -> Record | None:
        """Run one slot; return None if no online agent took it."""
        # The first number keeps training (0) and evaluation (1) from sharing random numbers.
        key = (0, stable_hash(turn.task.id), turn.index, slot, attempt)
        try:
            return await self._episode(turn.task, group_id, key, sample_index=slot, attempt=attempt)
        except SlotNotTaken:
            return None

    async def _evaluate_one(
        self, task: Task, task_set: str, index: int, seed: int, sampling: SamplingConfig | None
    ) -> Record:
        group_id = uuid.uuid4().hex[:16]
        await self._store.add_group(
            self._run_id, group_id, task.id, index=index, size=1, version=self._version, is_eval=True
        )
        key = (1, stable_hash(task.id), seed, 0, 0)
        async with self._source.group(group_id, task):
            record = await self._episode(task, group_id, key, is_eval=True, task_set=task_set, sampling=sampling)
        await self._store.finish_group(self._run_id, group_id, usable=record.outcome is Outcome.SCORED)
        return record

    async def _episode(
        self,
        task: Task,
        group_id: str,
        seed_key: tuple[int, ...],
        *,
        sample_index: int = 0,
        attempt: int = 0,
        is_eval: bool = False,
        task_set: str = "train",
        sampling: SamplingConfig | None = None,
    ) -> Record:
        """Run one episode in a concurrency slot, and count it; after failures the slot stays taken for a pause.

        Raises `RunError` once too many episodes failed.
        """
        async with self._slots:
            try:
                episode = await self._runner.run_episode(
                    task,
                    group_id=group_id,
                    sample_index=sample_index,
                    attempt=attempt,
                    is_eval=is_eval,
                    task_set=task_set,
                    seed_key=seed_key,
                    sampling=sampling,
                )
            except asyncio.CancelledError as cancellation:
                self.counts.add_cancelled(cancelled_for(cancellation))
                raise
            if self._on_ended is not None:
                self._on_ended(episode.record)
            self.counts.add(episode.record)
            # Inside the semaphore: the pause keeps the slot from starting another episode.
            await self._sleep(self.counts.pause_s(episode.record))
        if self._on_scored is not None and episode.record.outcome is Outcome.SCORED:
            self._on_scored(episode.record)
        return episode.record

    def _spawn(self, group: asyncio.TaskGroup, episode: Coroutine[None, None, T]) -> asyncio.Task[T]:
        task = group.create_task(episode)
        self._pending += 1
        task.add_done_callback(self._episode_ended)
        return task

    def _episode_ended(self, _: asyncio.Task[Any]) -> None:
        self._pending -= 1
        self._wake.set()

    def _group_ended(self, group: asyncio.Task[None]) -> None:
        self._groups.discard(group)
        # The first error ends the run; later ones are not raised.
        if not group.cancelled() and (error := group.exception()) is not None and self._error is None:
            self._error = root_cause(error)
        self._wake.set()

    async def _cancel_groups(self) -> None:
        for group in self._groups:
            group.cancel()
        if self._groups:
            await asyncio.wait(self._groups)

    def _on_loop(self, call: Callable[..., None], *arguments: object) -> None:
        """Call on the agents' loop; does nothing before the loop exists and after it is closed."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(call, *arguments)

    def _published(self, version: int, steps_done: int) -> None:
        self._version = version
        self._capacity.steps_done = steps_done
        self._queue.release()
        self._wake.set()

    def _replaced(self, groups: int) -> None:
        self._capacity.replaced(groups)
        self._wake.set()

    def _stopped(self) -> None:
        for evaluation in self._evaluations:
            evaluation.cancel()
        self._wake.set()


async def _run_slots(start: _StartSlot, config: RolloutConfig, *, tries: int = 0) -> bool:
    """Run every slot of a group, and return whether the group is usable.

    `tries` counts the earlier groups of this task that ended unusable. Attempt numbers continue after theirs, so that
    no episode is sampled with the random numbers of an earlier one.
    """
    slots = range(config.group_size)
    first = tries * (config.retries + 1)
    if config.siblings == "cancel":
        return await _all_or_nothing(start, slots, first)
    missing: list[int] = list(slots)
    for attempt in range(first, first + config.retries + 1):
        async with asyncio.TaskGroup() as group:
            # A TaskGroup, so that a fault that is not an episode's own cancels the other episodes and is raised.
            running = {slot: start(group, slot, attempt) for slot in missing}
        missing = [slot for slot, item in running.items() if not _scored(item)]
        # A slot that no online agent took in time is not retried: the group would wait again for agents that do not
        # come.
        if not missing or any(item.result() is None for item in running.values()):
            break
    return config.group_size - len(missing) >= config.min_group_size


async def _all_or_nothing(start: _StartSlot, slots: Iterable[int], attempt: int) -> bool:
    """Run all slots; when one ends without a score, cancel the others with their generations."""
    async with asyncio.TaskGroup() as group:
        running = [start(group, slot, attempt) for slot in slots]
        pending = set(running)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if not all(map(_scored, done)):
                break
        for item in pending:
            item.cancel(SIBLING_FAILED)
    return all(map(_scored, running))


def _scored(item: asyncio.Task[Record | None]) -> bool:
    """Return whether a finished slot has a reward; raise faults that are not an episode's own."""
    if item.cancelled():
        return False
    record = item.result()
    return record is not None and record.outcome is Outcome.SCORED
