"""Pool of agent worker processes for one run: each runs one episode at a time and is replaced when it ends."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from agentrl_core.api import context as workflow_context
from agentrl_core.errors import AgentRLError, EpisodeError, RunError
from agentrl_core.rollout.episode_source import CallSeat, EpisodeSource, Seat
from agentrl_core.rollout.failures import RemoteFailure
from agentrl_core.rollout.subproc.process import NotBegunError, WorkerProcess

if TYPE_CHECKING:
    from agentrl_core.api.context import WorkflowContext
    from agentrl_core.rollout.subproc.launch import Launch
    from agentrl_core.types import Record, Task

logger = logging.getLogger(__name__)

_STARTS = 3
"""Failed starts in a row after which the run gives up."""


class WorkerPool(EpisodeSource):
    """Up to `most` processes that run a workflow.

    `start` makes the first one and reports what is wrong with the workflow. `seat`, the episodes inside it and `close`
    belong to one event loop. Without a loop, `close_now` ends the workers. Workers that are never closed end with this
    process.
    """

    def __init__(self, launch: Launch, *, most: int, notice: str = "") -> None:
        self._launch = launch
        self._free = asyncio.Semaphore(most)
        self._idle: list[WorkerProcess] = []
        self._all: set[WorkerProcess] = set()
        self._starting: set[asyncio.Future[WorkerProcess]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._abort = threading.Event()
        self._failed_starts = 0
        self._name, self.notice = "", notice

    def start(self) -> None:
        """Start the first worker and wait until it is ready; blocks. Raises `UsageError` or `RunError`."""
        first = WorkerProcess.start(self._launch)
        self._name = first.name or self._launch.start["use"]
        self._log_output(first, "starting")
        self._all.add(first)
        self._idle.append(first)
        _open.add(self)

    @contextlib.asynccontextmanager
    async def seat(self, task: Task, record: Record) -> AsyncIterator[Seat]:  # noqa: ARG002 - any worker will do
        """Wait for a free worker and reserve it for the episode."""
        async with self._free:
            reserved = _ReservedWorker(self, await self.take())
            try:
                yield CallSeat(reserved)
            finally:
                self._give_back(reserved.worker)

    @property
    def name(self) -> str:
        """Origin of the workflow (`dist==version module:attr`), as the first worker found it."""
        return self._name

    async def take(self) -> WorkerProcess:
        """Return a worker that is ready. Raises `RunError` after three failed starts in a row."""
        while self._idle:
            worker = self._idle.pop()
            worker.attach()
            if worker.alive:
                return worker
            self.retire(worker)
        while True:
            try:
                worker = await self._started()
            except AgentRLError as error:
                self._failed_starts += 1
                logger.warning("a worker could not be started: %s", error)
                if self._failed_starts >= _STARTS or self._abort.is_set():
                    raise RunError(f"{_STARTS} times in a row a worker could not be started: {error}") from error
            else:
                self._failed_starts = 0
                return worker

    async def _started(self) -> WorkerProcess:
        """Start a worker on a thread. If the caller is cancelled meanwhile, the worker goes to the next caller."""
        loop = asyncio.get_running_loop()
        start = loop.run_in_executor(None, lambda: WorkerProcess.start(self._launch, abort=self._abort))
        self._starting.add(start)
        # A start on its thread cannot be interrupted. Shielded, so that its worker is not lost if the caller is
        # cancelled.
        waited = asyncio.shield(start)
        try:
            worker = await waited
        except asyncio.CancelledError:
            start.add_done_callback(self._keep)
            raise
        finally:
            if start.done():
                self._starting.discard(start)
        self._all.add(worker)
        worker.attach()
        self._log_output(worker, "starting")
        return worker

    def _keep(self, start: asyncio.Future[WorkerProcess]) -> None:
        self._starting.discard(start)
        if start.cancelled() or start.exception() is not None:
            return
        worker = start.result()
        self._all.add(worker)
        worker.attach()
        self._give_back(worker)

    def _give_back(self, worker: WorkerProcess) -> None:
        if worker.alive and not self._abort.is_set():
            self._idle.append(worker)
        else:
            self.retire(worker)

    def retire(self, worker: WorkerProcess) -> None:
        """Start to end a worker; does not wait."""
        worker.kill()
        if worker in self._all:
            self._all.discard(worker)
            ending = asyncio.get_running_loop().create_task(worker.ended())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End all workers and wait for their ends."""
        self._abort.set()
        # Starts that are under way see `_abort` and end by themselves.
        if self._starting:
            await asyncio.wait(self._starting)
        for worker in self._all:
            worker.attach()
        await asyncio.gather(*(worker.stop() for worker in self._all), *self._ending)
        self._all.clear()
        self._idle.clear()
        _open.discard(self)

    def close_now(self) -> None:
        """End all remaining workers without an event loop; blocks."""
        self._abort.set()
        while self._all:
            self._all.pop().end_now()
        _open.discard(self)

    def log_output(self, worker: WorkerProcess, record_id: str) -> None:
        """Write to the run's log what an agent printed."""
        self._log_output(worker, f"record {record_id}")

    @staticmethod
    def _log_output(worker: WorkerProcess, what: str) -> None:
        if text := worker.output.take():
            logger.info("%s printed:\n%s", what, text)

    @property
    def launch(self) -> Launch:
        """Command, environment and workflow that the workers are started with."""
        return self._launch


_open: set[WorkerPool] = set()
"""Pools that were not closed. The garbage collector must never end a worker: it would do so at any time, and would
not wait for the worker's guard."""


@atexit.register
def _close_all() -> None:
    for workers in tuple(_open):
        workers.close_now()


class _ReservedWorker:
    """A reserved worker, for the episode that runs in it."""

    def __init__(self, workers: WorkerPool, worker: WorkerProcess) -> None:
        self._workers = workers
        self.worker = worker

    async def __call__(self, data: dict[str, Any], injected: Mapping[str, Any]) -> Any:
        """Run one episode on `data` and return what the workflow returns.

        Raises `RemoteFailure` for what the workflow raises and if its process ends, `EpisodeError` if the data cannot
        be sent.
        """
        try:
            body = self._workers.launch.pack(data)
        except TypeError as error:
            raise EpisodeError("data_type", str(error)) from error
        here = workflow_context.get()
        header = {
            "episode": _episode(injected, here),
            "environ": _environ(injected["base_url"], injected["api_key"]),
            "pickled": self._workers.launch.own,
            "tools": here.tools is not None,
        }
        record_id = injected["record_id"]
        for _ in range(_STARTS):
            try:
                return await self.worker.run(header, body, here)
            except NotBegunError as error:
                problem = str(error)
                logger.info("record %s gets another process: the one that was free %s", record_id, problem)
            finally:
                self._workers.log_output(self.worker, record_id)
            # The episode did not begin, so no LLM call was made and another process can take it.
            self._workers.retire(self.worker)
            self.worker = await self._workers.take()
        text = f"{_STARTS} processes in a row could not begin the episode: the agent's process {problem}"
        raise RemoteFailure("AgentProcessDied", f"AgentProcessDied: {text}")


def _episode(injected: Mapping[str, Any], here: WorkflowContext) -> dict[str, Any]:
    episode = {name: value for name, value in injected.items() if name not in ("http_client", "engine", "tools")}
    return episode | {"task_id": here.task_id, "sample_index": here.sample_index}


def _environ(base_url: str, api_key: str) -> dict[str, str]:
    """Return the environment variables of an episode.

    OpenAI's clients expect the version in the base URL, Anthropic's clients add it.
    """
    return {
        "OPENAI_BASE_URL": f"{base_url}/v1",
        "OPENAI_API_KEY": api_key,
        "ANTHROPIC_BASE_URL": base_url,
        "ANTHROPIC_API_KEY": api_key,
    }
