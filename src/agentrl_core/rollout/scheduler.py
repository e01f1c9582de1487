"""Claim groups from the store and run their episodes: the heart of a sampling member.

The store decides which groups come next, and how far sampling may run ahead of training; any number of members claim
from one store. Synchronous training is asynchronous training with a bound of 0; there is one code path. Nothing polls
in one process: the loop wakes when an episode or a group ends, and when the store says that something has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl_core.api.claims import Admission
from agentrl_core.api.scoring import training_step
from agentrl_core.errors import ClaimLostError, ConfigError, RunError, StoreError
from agentrl_core.rollout.episode_source import SlotNotTaken
from agentrl_core.rollout.failures import root_cause
from agentrl_core.rollout.group_slots import run_slots
from agentrl_core.rollout.order import TaskOrder, stable_hash
from agentrl_core.rollout.outcome_counts import OutcomeCounts
from agentrl_core.rollout.run_agent import cancelled_for
from agentrl_core.rollout.slots import EpisodeSlots
from agentrl_core.types import Outcome, Record, Task

if TYPE_CHECKING:
    from agentrl_core.api.claims import GroupClaim
    from agentrl_core.api.stores import RunControl, Store
    from agentrl_core.config.sampling_sections import RolloutConfig, SamplingConfig
    from agentrl_core.rollout.runner import Runner

T = TypeVar("T")

logger = logging.getLogger(__name__)

CONCURRENCY = "rollout.max_concurrent_rollouts"
"""Limit of `RunControl.limits` that schedulers obey, each for its own member."""


def admission(config: RolloutConfig, *, total_steps: int | None) -> Admission:
    """Return the limits of a run's groups, as its config has them."""
    return Admission(
        max_head_offpolicyness=config.max_head_offpolicyness,
        tasks_per_step=config.tasks_per_step,
        total_steps=total_steps,
        pipeline_depth=config.pipeline_depth,
        requeue=config.requeue,
        max_takeovers=config.max_takeovers,
    )


class Scheduler:
    """Runs the groups and evaluations that it claims for the member `member_id`, within one limit of episodes.

    `run` belongs to the agents' event loop; all other methods may be called from any thread. Equal seeds give each
    position the same task and the same random keys, whoever runs it. `version()` is the policy version that a new LLM
    call samples from. In evaluations `eval_sampling` replaces the policy's sampling parameters. With `total_steps`, no
    group is sampled that no step would consume. `on_scored(record)`, and for every outcome `on_ended(record)`, are
    called on the agents' loop. Without tasks, the runner's source brings them. What other processes change in the store
    is noticed within `poll_s`. `refresh()`, if given, is awaited before each claim: where servers are other processes,
    it is how `version()` learns of a version that has just been admitted.
    """

    def __init__(
        self,
        *,
        tasks: Sequence[Task],
        runner: Runner,
        store: Store,
        config: RolloutConfig,
        run_id: str,
        member_id: str,
        seed: int,
        version: Callable[[], int],
        eval_sampling: SamplingConfig | None = None,
        shuffle: bool = True,
        total_steps: int | None = None,
        poll_s: float = 0.5,
        refresh: Callable[[], Awaitable[None]] | None = None,
        on_scored: Callable[[Record], None] | None = None,
        on_ended: Callable[[Record], None] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if config.min_group_size > config.group_size:
            raise ConfigError(
                f"rollout.min_group_size = {config.min_group_size} exceeds rollout.group_size = {config.group_size}: "
                "no group could ever be used"
            )
        self._source = runner.source
        self._order = None if self._source.brings_tasks and not tasks else TaskOrder(tasks, seed=seed, shuffle=shuffle)
        self._stored: dict[str, Mapping[str, Task]] = {}
        self._runner, self._store, self._config, self._run_id = runner, store, config, run_id
        self._member_id, self._seed, self._version = member_id, seed, version
        self._eval_sampling, self._poll_s, self._refresh = eval_sampling, poll_s, refresh
        self._on_scored, self._on_ended, self._sleep = on_scored, on_ended, sleep
        self._admission = admission(config, total_steps=total_steps)
        self.counts = OutcomeCounts(config)
        """Endings of records and groups so far; may be read from any thread."""
        self.tool_calls = runner.tool_calls
        """Tool calls so far, likewise."""
        self._slots = EpisodeSlots(config.max_concurrent_rollouts)
        # Episodes that hold a slot, wait for one, or are about to.
        self._pending = 0
        self._groups: dict[asyncio.Task[None], GroupClaim] = {}
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = self._closed = False
        self._error: BaseException | None = None
        self._seen = 0  # see `Store.changed`
        # Number of changes of the store so far, and that number when the control was read and when nothing was left.
        self._changes, self._control_read_at, self._nothing_left_at = 0, -1, -1
        self._admitted_steps = 0

    @property
    def idle_s(self) -> float:
        """Seconds so far in which no episode ran; may be read from any thread."""
        return self._slots.idle_s

    @property
    def running(self) -> int:
        """Number of groups that this member runs now; may be read from any thread."""
        return len(self._groups)

    async def run(self) -> None:
        """Run groups until `stop`, or until sampling is closed; then cancel and release those that still run.

        Raises errors that no episode is to blame for: `RunError` (too many failures, engine, store, a lost member), or
        a programming error.
        """
        with self._runner.unawaited.watching():
            await self._run_groups()

    async def _run_groups(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._slots.start()
        watching = asyncio.create_task(self._watch_store())
        watching.add_done_callback(self._keep_error)
        try:
            while not self._halted:
                # Before claiming: an event that arrives during `_claim` must wake the loop once more.
                self._wake.clear()
                await self._claim()
                await self._wake.wait()
        finally:
            watching.cancel()
            await self._give_up_groups()
        if self._error is not None:
            raise self._error

    def obey(self, control: RunControl) -> None:
        """Take over what people want of the run's members: a pause, a limit, or the end of sampling."""
        self._on_loop(self._obey, control)

    def stop(self, error: RunError | None = None) -> None:
        """Start no more episodes and cancel the running ones; `run` returns once they have ended, or raises `error`."""
        self._stopping = True
        self._error = self._error or error
        self._on_loop(self._wake.set)

    @property
    def _halted(self) -> bool:
        return self._stopping or self._closed or self._error is not None

    async def _watch_store(self) -> None:
        while True:
            self._seen = await self._store.changed(self._run_id, self._seen, timeout_s=self._poll_s)
            self._changes += 1
            self._wake.set()

    async def _claim(self) -> None:
        """Claim and start groups while an episode slot is free and the store has groups to run.

        A group does not start before one of its episodes can: its recorded version is the one that it samples from.
        """
        while not self._halted:
            if self._control_read_at != self._changes:
                self._control_read_at = self._changes
                self._obey(await self._store.control(self._run_id))
            # After an answer that there is nothing left, only a change in the store can bring something.
            free = self._slots.limit - self._pending
            if free <= 0 or self._halted or self._nothing_left_at == self._changes:
                return
            changes, count = self._changes, math.ceil(free / self._config.group_size)
            if self._refresh is not None:
                await self._refresh()
            claims = await self._store.claim_groups(
                self._run_id,
                self._member_id,
                count,
                admission=self._admission,
                size=self._config.group_size,
                version=self._version(),
                task_at=None if self._order is None else self._order.id_at,
            )
            if len(claims) < count:
                self._nothing_left_at = changes
            try:
                positions = [claim.index for claim in claims if not claim.is_eval]
                if self._order is not None and positions:
                    # Here, because the next claim asks for tasks while its transaction keeps all others out.
                    self._order.prepare(max(positions))
                if not all(claim.is_eval for claim in claims):
                    # They may have been admitted since the control was read, and scorers are told the step.
                    self._obey(await self._store.control(self._run_id))
            finally:
                for claim in claims:
                    self._start(claim)

    def _obey(self, control: RunControl) -> None:
        limit = control.limits.get(CONCURRENCY, self._config.max_concurrent_rollouts)
        self._slots.limit = int(limit) if control.wanted == "run" else 0
        self._runner.obey(control)
        self._closed = control.closed
        self._admitted_steps = max(0, control.admitted_steps)
        self._wake.set()

    def _start(self, claim: GroupClaim) -> None:
        running = asyncio.create_task(self._run_claim(claim))
        self._groups[running] = claim
        # The group's episodes are counted in advance, so that `_claim` does not start too many groups.
        self._pending += claim.size - len(claim.scored)
        running.add_done_callback(self._group_ended)

    async def _run_claim(self, claim: GroupClaim) -> None:
        """Run a claimed group to its end; do nothing more for it once the claim is lost."""
        reserved = claim.size - len(claim.scored)
        try:
            async with self._source.group(claim.group_id, await self._task_of(claim)) as task:
                if not claim.task_id:
                    claim = await self._begin(claim, task)
                # From now on `_spawn` counts each episode.
                self._pending -= reserved
                reserved = 0
                await (self._evaluate(claim, task) if claim.is_eval else self._train(claim, task))
        except (ClaimLostError, BaseExceptionGroup) as error:
            if not _lost_alone(error):
                raise
            logger.warning("group %s goes to another member: %s", claim.group_id, root_cause(error))
        finally:
            self._pending -= reserved

    async def _task_of(self, claim: GroupClaim) -> Task | None:
        """Return the task of a claim; None for a reserved group."""
        if not claim.task_id:
            return None
        if claim.is_eval or self._order is None:
            return await self._stored_task(claim)
        task = self._order[claim.index]
        if task.id != claim.task_id:
            raise RunError(
                f"position {claim.index} of the run is the task '{claim.task_id}', and in this process '{task.id}'; "
                "all members of a run must read the same data.train, with the same seed and data.shuffle"
            )
        return task

    async def _stored_task(self, claim: GroupClaim) -> Task:
        """Return a task of an evaluation, or one that an online agent brought to a member that is gone."""
        known = self._stored.get(claim.task_set, {})
        if claim.task_id not in known:
            stored = await self._store.tasks(self._run_id, task_set=claim.task_set)
            known = self._stored[claim.task_set] = {task.id: task for task in stored}
        if claim.task_id not in known:
            raise StoreError(
                f"{self._store.location} lacks the task '{claim.task_id}' of the set '{claim.task_set}', which a group "
                "of the run names; put back the database that belongs to the run"
            )
        return known[claim.task_id]

    async def _begin(self, claim: GroupClaim, task: Task) -> GroupClaim:
        """Give a reserved group the task that the source has brought."""
        await self._store.add_tasks(self._run_id, [task])
        return await self._store.begin_group(claim, task.id)

    async def _train(self, claim: GroupClaim, task: Task) -> None:
        # Each group is an asyncio task with its own context, so this value is seen by its episodes alone.
        training_step.set(self._admitted_steps)

        def start(group: asyncio.TaskGroup, slot: int, attempt: int) -> asyncio.Task[Record | None]:
            return self._spawn(group, self._run_slot(claim, task, slot, attempt))

        usable = await run_slots(start, self._config, size=claim.size, scored=claim.scored, tries=claim.tries)
        # A task that an online agent brought is not sampled again: no other agent would work on it.
        requeue = 0 if self._order is None else self._config.requeue
        requeued = await self._store.finish_group(claim, usable=usable, requeue=requeue)
        self.counts.add_group(usable=usable, requeued=requeued)

    async def _run_slot(self, claim: GroupClaim, task: Task, slot: int, attempt: int) -> Record | None:
        """Run one slot; return None if no online agent took it."""
        # The first number keeps training (0) and evaluation (1) from sharing random numbers.
        key = (0, stable_hash(task.id), claim.index, slot, attempt)
        try:
            return await self._episode(claim, task, key, sample_index=slot, attempt=attempt)
        except SlotNotTaken:
            return None

    async def _evaluate(self, claim: GroupClaim, task: Task) -> None:
        """Run the one episode of an evaluation group.

        The random keys depend on the seed and the task alone, so evaluations compare policies on equal terms.
        """
        usable = bool(claim.scored)
        if not usable:
            key = (1, stable_hash(task.id), self._seed, 0, 0)
            async with asyncio.TaskGroup() as group:
                running = self._spawn(group, self._episode(claim, task, key, sampling=self._eval_sampling))
            usable = running.result().outcome is Outcome.SCORED
        await self._store.finish_group(claim, usable=usable)

    async def _episode(
        self,
        claim: GroupClaim,
        task: Task,
        seed_key: tuple[int, ...],
        *,
        sample_index: int = 0,
        attempt: int = 0,
        sampling: SamplingConfig | None = None,
    ) -> Record:
        """Run one episode in a concurrency slot, and count it; after failures the slot stays taken for a pause.

        Raises `RunError` once too many episodes failed.
        """
        async with self._slots:
            try:
                episode = await self._runner.run_episode(
                    task,
                    group_id=claim.group_id,
                    sample_index=sample_index,
                    attempt=attempt,
                    is_eval=claim.is_eval,
                    task_set=claim.task_set,
                    seed_key=seed_key,
                    sampling=sampling,
                    member_id=claim.member_id,
                )
            except asyncio.CancelledError as cancellation:
                self.counts.add_cancelled(cancelled_for(cancellation))
                raise
            record = episode.record
            if self._on_ended is not None:
                self._on_ended(record)
            if record.outcome is Outcome.CANCELLED:  # by someone else, in the store
                self.counts.add_cancelled(record.reason)
                return record
            self.counts.add(record)
            # Inside the slot: the pause keeps it from starting another episode.
            await self._sleep(self.counts.pause_s(record))
        if self._on_scored is not None and record.outcome is Outcome.SCORED:
            self._on_scored(record)
        return record

    def _spawn(self, group: asyncio.TaskGroup, episode: Coroutine[None, None, T]) -> asyncio.Task[T]:
        task = group.create_task(episode)
        self._pending += 1
        task.add_done_callback(self._episode_ended)
        return task

    def _episode_ended(self, _: asyncio.Task[Any]) -> None:
        self._pending -= 1
        self._wake.set()

    def _group_ended(self, group: asyncio.Task[None]) -> None:
        if not group.cancelled() and group.exception() is None:
            self._groups.pop(group, None)
        self._keep_error(group)

    def _keep_error(self, task: asyncio.Task[None]) -> None:
        # The first error ends the run; later ones are not raised.
        if not task.cancelled() and (error := task.exception()) is not None and self._error is None:
            self._error = root_cause(error)
        self._wake.set()

    async def _give_up_groups(self) -> None:
        """Cancel the running groups, and release their claims, so that the next member takes them over."""
        for group in tuple(self._groups):
            group.cancel()
        if self._groups:
            await asyncio.wait(self._groups)
        for claim in self._groups.values():  # those that ended meanwhile are gone from here
            # Where the store fails, the claims become free when the member leaves or is lost.
            with contextlib.suppress(StoreError):
                await self._store.release_group(claim)
        self._groups.clear()

    def _on_loop(self, call: Callable[..., None], *arguments: object) -> None:
        """Call on the agents' loop; does nothing before the loop exists and after it is closed."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(call, *arguments)


def _lost_alone(error: BaseException) -> bool:
    """Return whether a group ended because its claim was lost, and for no other reason."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(ClaimLostError)[1] is None
    return True
