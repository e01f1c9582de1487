"""How a workflow's function is called: with the arguments that it accepts, on the loop or on a thread."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from agentrl_core.daemons import call_on_thread
from agentrl_core.errors import ConfigError

INJECTED = ("base_url", "api_key", "http_client", "record_id", "is_eval")
"""Keyword arguments that an episode offers; a workflow gets those that its signature accepts."""

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class WorkflowCall:
    """A workflow's function, ready to be called once per episode.

    Raises `ConfigError` where the function cannot be called with one task's data.
    """

    def __init__(self, function: Callable[..., Any], name: str, *, where: str = "workflow") -> None:
        self.function = function
        """As it was given, its options bound."""
        self._is_async = inspect.iscoroutinefunction(function)
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
            signature.bind({}, **dict.fromkeys(self.accepted))
        except TypeError as error:
            raise ConfigError(
                f"{where}: {name}{signature} cannot be called with (data, {', '.join(INJECTED)}): {error}; "
                "give the other parameters a default, or set them as options of the workflow"
            ) from None

    async def __call__(self, data: dict[str, Any], injected: Mapping[str, Any]) -> Any:
        """Return what the workflow returns; a sync function runs on a thread of its own."""
        arguments = {name: value for name, value in injected.items() if name in self.accepted}
        if self._is_async:
            return await self.function(data, **arguments)
        returned = await call_on_thread(functools.partial(self.function, data, **arguments), name="agentrl-workflow")
        return await returned if inspect.isawaitable(returned) else returned


def takes_data(signature: inspect.Signature) -> bool:
    """Whether the first parameter must be given by position, as a task's data is."""
    first = next(iter(signature.parameters.values()), None)
    if first is None:
        return False
    if first.kind is inspect.Parameter.VAR_POSITIONAL:
        return True
    return first.kind in _BY_POSITION and first.default is inspect.Parameter.empty


def _signature(function: Callable[..., Any], name: str, where: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: the signature of {name} cannot be read ({error}); wrap it in a function") from None
