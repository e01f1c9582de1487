"""The workers of a run: one episode at a time in each, started when they are needed, replaced when they end."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from agentrl_core.api import context as workflow_context
from agentrl_core.errors import AgentRLError, EpisodeError, RunError
from agentrl_core.rollout.failures import RemoteFailure
from agentrl_core.rollout.subproc.process import NotBegunError, WorkerProcess

if TYPE_CHECKING:
    from agentrl_core.rollout.subproc.launch import Launch

logger = logging.getLogger(__name__)

_STARTS = 3
"""Starts that may fail in a row."""


class Workers:
    """Up to `most` processes that run a workflow.

    `start` makes the first and tells what is wrong with the workflow. `seat` and the calls inside it belong to one
    event loop, as does `close`; before there is one, `close_now` ends the workers. Those that nobody has closed go on
    until this process ends.
    """

    def __init__(self, launch: Launch, *, most: int) -> None:
        self._launch = launch
        self._free = asyncio.Semaphore(most)
        self._idle: list[WorkerProcess] = []
        self._all: set[WorkerProcess] = set()
        self._starting: set[asyncio.Future[WorkerProcess]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._abort = threading.Event()
        self._failed_starts = 0
        self.name = ""
        """Where the workflow came from, as the first worker found it."""

    def start(self) -> None:
        """Start the first worker, and wait until it is ready; blocks. Raises `UsageError`, or `RunError`."""
        first = WorkerProcess.start(self._launch)
        self.name = first.name or self._launch.start["use"]
        self._log_output(first, "starting")
        self._all.add(first)
        self._idle.append(first)
        _open.add(self)

    @contextlib.asynccontextmanager
    async def seat(self) -> AsyncIterator[None]:
        """Wait for a worker, and have it for the calls inside."""
        async with self._free:
            seat = _Seat(self, await self.take())
            token = _taken.set(seat)
            try:
                yield
            finally:
                _taken.reset(token)
                self._give_back(seat.worker)

    async def __call__(self, data: dict[str, Any], injected: Mapping[str, Any]) -> Any:
        """Run one episode, inside `seat`, on `data`, and return what the workflow returns.

        Raises `RemoteFailure` for what it raises and for the end of its process, `EpisodeError` for what cannot be
        sent.
        """
        return await _taken.get()(data, injected)

    async def take(self) -> WorkerProcess:
        """Return a worker that is ready. Raises `RunError` where none can be started any more."""
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
        """Start a worker on a thread; if nobody waits for it any more, it is there for the next."""
        loop = asyncio.get_running_loop()
        start = loop.run_in_executor(None, lambda: WorkerProcess.start(self._launch, abort=self._abort))
        self._starting.add(start)
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
        """End a worker, without waiting for that."""
        worker.kill()
        if worker in self._all:
            self._all.discard(worker)
            ending = asyncio.get_running_loop().create_task(worker.ended())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End all workers."""
        self._abort.set()
        if self._starting:
            await asyncio.wait(self._starting)
        for worker in self._all:
            worker.attach()
        await asyncio.gather(*(worker.stop() for worker in self._all), *self._ending)
        self._all.clear()
        self._idle.clear()
        _open.discard(self)

    def close_now(self) -> None:
        """End all workers that are left, without an event loop."""
        self._abort.set()
        while self._all:
            self._all.pop().end_now()
        _open.discard(self)

    def log_output(self, worker: WorkerProcess, record_id: str) -> None:
        """Write what an agent printed to the run's log."""
        self._log_output(worker, f"record {record_id}")

    @staticmethod
    def _log_output(worker: WorkerProcess, what: str) -> None:
        if text := worker.output.take():
            logger.info("%s printed:\n%s", what, text)

    @property
    def launch(self) -> Launch:
        """How the workers are started."""
        return self._launch


_open: set[Workers] = set()
"""Pools are never left to the garbage collector: it would end a worker at any time, and not wait for its guard."""


@atexit.register
def _close_all() -> None:
    for workers in tuple(_open):
        workers.close_now()


class _Seat:
    """The right to run an episode, and the worker to do it."""

    def __init__(self, workers: Workers, worker: WorkerProcess) -> None:
        self._workers = workers
        self.worker = worker

    async def __call__(self, data: dict[str, Any], injected: Mapping[str, Any]) -> Any:
        try:
            body = self._workers.launch.pack(data)
        except TypeError as error:
            raise EpisodeError("data_type", str(error)) from error
        header = {
            "episode": _episode(injected),
            "environ": _environ(injected["base_url"], injected["api_key"]),
            "pickled": self._workers.launch.own,
        }
        record_id = injected["record_id"]
        for _ in range(_STARTS):
            try:
                return await self.worker.run(header, body)
            except NotBegunError as error:
                problem = str(error)
                logger.info("record %s has another process: the one that was free %s", record_id, problem)
            finally:
                self._workers.log_output(self.worker, record_id)
            self._workers.retire(self.worker)
            self.worker = await self._workers.take()
        text = f"{_STARTS} processes in a row could not begin the episode: the agent's process {problem}"
        raise RemoteFailure("AgentProcessDied", f"AgentProcessDied: {text}")


_taken: ContextVar[_Seat] = ContextVar("agentrl_seat")


def _episode(injected: Mapping[str, Any]) -> dict[str, Any]:
    episode = {name: value for name, value in injected.items() if name not in ("http_client", "engine")}
    here = workflow_context.get()
    return episode | {"task_id": here.task_id, "sample_index": here.sample_index}


def _environ(base_url: str, api_key: str) -> dict[str, str]:
    """The variables of an episode; OpenAI's clients want the version in the URL, Anthropic's add it."""
    return {
        "OPENAI_BASE_URL": f"{base_url}/v1",
        "OPENAI_API_KEY": api_key,
        "ANTHROPIC_BASE_URL": base_url,
        "ANTHROPIC_API_KEY": api_key,
    }
