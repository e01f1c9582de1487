"""Interface between the runner and the ways to run an agent: a source gives an episode a seat, the seat runs it.

Three sources are built in: `ResolvedWorkflow` calls the agent in this process, `WorkerPool` (`subproc/pool.py`) calls
it in worker processes, and `OnlineAgents` waits for agents that run elsewhere.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from agentrl_core.api import context as workflow_context
from agentrl_core.rollout.run_agent import AgentResult, run_agent
from agentrl_core.rollout.token_level.engine import RecordEngine

if TYPE_CHECKING:
    from agentrl_core.api.tools import EpisodeTools
    from agentrl_core.config.sampling_sections import SamplingConfig
    from agentrl_core.rollout.episode_gateway import EpisodeGateway, EpisodeSession
    from agentrl_core.types import Message, Record, Task

AgentCall: TypeAlias = Callable[[dict[str, Any], Mapping[str, Any]], Awaitable[Any]]
"""Call of an agent with a task's data and the arguments that an episode injects; it returns the agent's reward."""


class SlotNotTaken(Exception):  # noqa: N818 - not an error
    """No agent took a slot of a begun group in time."""


@attrs.frozen(kw_only=True)
class OpenEpisode:
    """An episode with an open session: everything that a seat needs to run the agent."""

    task: Task
    record: Record
    session: EpisodeSession
    gateway: EpisodeGateway[Any]
    ask_scorer: Callable[[str, Sequence[Message]], Awaitable[float]]
    """Function that asks the task's scorer about a reply in the middle of the episode."""
    tools: EpisodeTools | None
    """Tools of the episode; None if the config lists none."""
    add_mark: Callable[[str], None]
    """Function that marks the record."""
    timeout_s: float
    """Time limit of the agent, in seconds."""
    grace_s: float
    """Time that a cancelled agent has for its cleanup, in seconds."""

    async def run(self, call: AgentCall) -> AgentResult:
        """Await `call(data, injected)` under the time limit, in a context that knows the episode."""
        injected: dict[str, Any] = {
            "base_url": self.session.base_url,
            "api_key": self.session.api_key,
            "http_client": self.gateway.http_client,
            "record_id": self.record.id,
            "is_eval": self.record.is_eval,
        }
        here = workflow_context.WorkflowContext(
            task_id=self.task.id,
            sample_index=self.record.sample_index,
            ask_scorer=self.ask_scorer,
            tools=self.tools,
            add_mark=self.add_mark,
            **injected,
        )
        if self.tools is not None:
            injected["tools"] = self.tools
        # A copy, so that the episode is known to the agent's tasks and threads alone.
        context = contextvars.copy_context()
        context.run(workflow_context.enter, here)
        # An agent may change its input, and other records of the group must not see that.
        data = copy.deepcopy(dict(self.task.data))
        injected["engine"] = RecordEngine(self.gateway, self.session)
        return await run_agent(lambda: call(data, injected), context, timeout_s=self.timeout_s, grace_s=self.grace_s)


class Seat(ABC):
    """Place that is reserved for one episode, such as a worker process or the session of an agent that waits."""

    async def open_session(
        self,
        gateway: EpisodeGateway[Any],
        record: Record,
        *,
        seed_key: tuple[int, ...],
        sampling: SamplingConfig | None,
    ) -> EpisodeSession:
        """Open the session of the episode; the runner closes it. `EpisodeError` rejects the record."""
        session: EpisodeSession = await gateway.open_session(record, seed_key=seed_key, sampling=sampling)
        return session

    @abstractmethod
    async def run(self, episode: OpenEpisode) -> AgentResult:
        """Run the agent once, and return its result; what the agent raises is part of the result."""


class CallSeat(Seat):
    """Seat of an agent that agentrl calls itself."""

    def __init__(self, call: AgentCall) -> None:
        self._call = call

    async def run(self, episode: OpenEpisode) -> AgentResult:
        """Call the agent."""
        return await episode.run(self._call)


class EpisodeSource(ABC):
    """Way to run the episodes of a run, on the agents' event loop.

    Only `seat` must be written; the other methods have defaults for a source that holds nothing beyond an episode:

        class Sandboxes(EpisodeSource):
            @contextlib.asynccontextmanager
            async def seat(self, task, record):
                async with self.pool.sandbox() as sandbox:
                    yield CallSeat(lambda data, injected: agent(data, sandbox, **injected))
    """

    brings_tasks: bool = False
    """Whether `group` finds a task by itself, for a run without tasks."""
    notice: str = ""
    """Line for the user about the way in which agents run; empty for none."""

    @property
    def name(self) -> str:
        """Origin of the agent, for the trace: `dist==version module:attr`; empty if the run does not start it."""
        return ""

    @contextlib.asynccontextmanager
    async def group(self, group_id: str, task: Task | None) -> AsyncIterator[Task]:
        """Begin a group before its first episode, end it after the last one, and yield its task.

        The task is the given one. It is None only if the run has no tasks and the source brings them. Each task of an
        evaluation is a group. A group begins before it has an episode slot; what is scarce belongs in `seat`.
        """
        if task is None:
            raise TypeError(f"group {group_id} has no task, and {type(self).__name__} brings none")
        yield task

    @abstractmethod
    def seat(self, task: Task, record: Record) -> AbstractAsyncContextManager[Seat]:
        """Reserve what an episode needs, and give it back at the end, also of a cancelled episode.

        The episode's time starts when this is entered, so it may wait without a limit. Raises `SlotNotTaken` if the
        group is to go on without this episode, `RunError` if no episode could get a seat any more.
        """

    async def close(self) -> None:
        """Release everything at the end of the run; no episode is running any more."""
        return

    def close_now(self) -> None:
        """Release what is left without an event loop; blocks. May follow `close`, or take its place."""
        return
