"""Run a workflow in this process: call it with the injected arguments that its signature accepts."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.concurrency.threads import call_on_thread
from agentrl_core.errors import ConfigError, EpisodeError
from agentrl_core.rollout.episode_source import AgentCall, CallSeat, EpisodeSource, Seat
from agentrl_core.rollout.subproc.inside.signatures import (
    SignatureError,
    accepted_arguments,
    is_async,
    read_signature,
    takes_by_name,
)

if TYPE_CHECKING:
    from agentrl_core.types import Record, Task


@attrs.frozen
class ResolvedWorkflow(EpisodeSource):
    """A workflow that is ready to run in this process: built once, called once per episode."""

    name: str
    """Origin of the workflow, for the trace: `dist==version module:attr`."""
    call: AgentCall
    """Call of the workflow; of what is injected, it gets the arguments that its signature accepts."""

    @contextlib.asynccontextmanager
    async def seat(self, task: Task, record: Record) -> AsyncIterator[Seat]:  # noqa: ARG002 - nothing is reserved
        """Yield a seat at once: an episode in this process needs nothing but the workflow."""
        yield CallSeat(self.call)


class WorkflowCall:
    """Workflow function that is checked and ready to be called once per episode.

    Raises `ConfigError` if the function cannot be called with a task's data.
    """

    def __init__(self, function: Callable[..., Any], name: str, *, where: str = "workflow") -> None:
        self.function = function
        """The function as it was given, with its options bound."""
        self._is_async = is_async(function)
        try:
            self.accepted = accepted_arguments(function, name)
        except SignatureError as error:
            raise ConfigError(f"{where}: {error}") from None
        # A decorator may have made a plain function of an async one, which it calls.
        if not (self._is_async or is_async(inspect.unwrap(function))) and takes_by_name(function, "http_client"):
            raise ConfigError(
                f"{where}: {name} takes http_client, which is for async clients, but is not async; leave the "
                "parameter out, or write `async def` and use an async client"
            )

    async def __call__(self, data: dict[str, Any], injected: Mapping[str, Any]) -> Any:
        """Return the workflow's return value; a sync function runs on a new thread."""
        arguments = {name: value for name, value in injected.items() if name in self.accepted}
        if self._is_async:
            return await self.function(data, **arguments)
        returned = await call_on_thread(functools.partial(self.function, data, **arguments), name="agentrl-workflow")
        return await returned if inspect.isawaitable(returned) else returned


class EngineCall:
    """The `arun_episode` of a token-level workflow, which calls the engine itself.

    Raises `ConfigError` if it cannot be called with the engine and a task's data.
    """

    def __init__(self, function: Callable[..., Any], name: str, *, where: str = "workflow") -> None:
        self._function, self._name = function, name
        try:
            signature = read_signature(function, name)
        except SignatureError as error:
            raise ConfigError(f"{where}: {error}") from None
        try:
            signature.bind(None, {})
        except TypeError as error:
            problem = f"cannot be called with (engine, data): {error}"
        else:
            problem = "" if is_async(function) else "is not async; expected async def arun_episode(self, engine, data)"
        if problem:
            raise ConfigError(f"{where}: {name}{signature} {problem}")

    async def __call__(self, data: dict[str, Any], injected: Mapping[str, Any]) -> Any:
        """Return the workflow's return value; `EpisodeError` if it rejects the episode by returning None."""
        returned = await self._function(injected["engine"], data)
        if returned is None:
            raise EpisodeError(
                "by_workflow",
                f"{self._name} returned None, which rejects the episode; return a reward, or "
                "agentrl_core.Answer(text) to leave it to the task's scorer",
            )
        return returned
