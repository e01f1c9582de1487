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

if TYPE_CHECKING:
    from agentrl_core.types import Record, Task

INJECTED = ("base_url", "api_key", "http_client", "record_id", "is_eval")
"""Keyword arguments that an episode offers; a workflow gets those that its signature accepts."""

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


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
        self._is_async = _is_async(function)
        signature = _signature(function, name, where)
        if not takes_data(signature):
            raise ConfigError(
                f"{where}: {name}{signature} has no parameter for the task; expected run(data) or "
                f"run(data, *, {', '.join(INJECTED)}), where each keyword is optional"
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(f"{where}: {name}{signature} yields; expected a function that returns the reward")
        parameters = signature.parameters.values()
        if any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters):
            self.accepted: frozenset[str] = frozenset(INJECTED)
        else:
            self.accepted = frozenset(item.name for item in parameters if item.kind in _BY_NAME) & set(INJECTED)
        try:
            # A dry run: a parameter that no episode gives is refused before anything starts.
            signature.bind({}, **dict.fromkeys(self.accepted))
        except TypeError as error:
            raise ConfigError(
                f"{where}: {name}{signature} cannot be called with (data, {', '.join(INJECTED)}): {error}; "
                "give the other parameters a default, or set them as options of the workflow"
            ) from None

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
        signature = _signature(function, name, where)
        try:
            signature.bind(None, {})
        except TypeError as error:
            problem = f"cannot be called with (engine, data): {error}"
        else:
            problem = "" if _is_async(function) else "is not async; expected async def arun_episode(self, engine, data)"
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


def takes_data(signature: inspect.Signature) -> bool:
    """Return whether the first parameter must be given by position, as a task's data is."""
    first = next(iter(signature.parameters.values()), None)
    if first is None:
        return False
    if first.kind is inspect.Parameter.VAR_POSITIONAL:
        return True
    return first.kind in _BY_POSITION and first.default is inspect.Parameter.empty


def _is_async(function: Callable[..., Any]) -> bool:
    """Return whether a function, or an object's `__call__`, is a coroutine function."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 (reads `__call__`, does not test for it)


def _signature(function: Callable[..., Any], name: str, where: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: the signature of {name} cannot be read ({error}); wrap it in a function") from None
