"""Copying of smolagents agents: an agent holds its conversation, state and tools, so records cannot share one."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, cast

from rich.console import Console
from smolagents import LogLevel, MultiStepAgent
from smolagents.local_python_executor import PythonExecutor
from smolagents.models import Model
from smolagents.monitoring import AgentLogger, Monitor
from smolagents.tools import BaseTool

from agentrl_core.errors import ConfigError

_OPENED = (MultiStepAgent, BaseTool, Monitor, PythonExecutor)
"""Classes whose attributes are searched for models, loggers and other agents."""


def copy_of(agent: MultiStepAgent) -> MultiStepAgent:
    """Return a copy of `agent` whose step log is silent.

    The copy shares only the models with `agent`, and objects that functions and modules hold. Raises `ConfigError` if a
    part of the agent cannot be copied.
    """
    try:
        return cast("MultiStepAgent", _copied(agent, agent))
    except Exception as error:
        raise ConfigError(
            f"workflow: each record needs its own agent, and this {type(agent).__name__} cannot be copied: "
            f"{_culprit(agent)}{type(error).__name__}: {error}; fix: name a function without arguments that builds the "
            "agent, which is then called once per record"
        ) from error


def silence(agent: MultiStepAgent) -> None:
    """Turn off the step logs of an agent and of the agents in it: logs of many records at once are unreadable."""
    for found in _reachable(agent):
        if isinstance(found, MultiStepAgent):
            found.logger = found.monitor.logger = _silent()


def _copied(found: Any, agent: MultiStepAgent) -> Any:
    # `deepcopy` takes an object from `memo` instead of copying it: models stay shared, loggers are replaced.
    memo: dict[int, Any] = {}
    for kept in _reachable(agent):
        if isinstance(kept, Model):
            memo[id(kept)] = kept
        elif isinstance(kept, AgentLogger):
            memo[id(kept)] = _silent()
    return copy.deepcopy(found, memo)


def _reachable(agent: MultiStepAgent) -> Iterator[Any]:
    """Yield the agent, the agents that it manages or that its tools hold, and all direct attributes of these."""
    waiting: list[Any] = [agent]
    seen: set[int] = set()
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        if isinstance(found, Mapping):
            waiting.extend(found.values())
        elif isinstance(found, list | tuple):
            waiting.extend(found)
        elif isinstance(found, _OPENED):
            waiting.extend(vars(found).values())


def _silent() -> AgentLogger:
    return AgentLogger(level=LogLevel.OFF, console=Console(quiet=True))


def _culprit(agent: MultiStepAgent) -> str:
    """Name the part that cannot be copied."""
    parts = {f"its tool '{name}', ": tool for name, tool in agent.tools.items()}
    parts |= {f"its agent '{name}', ": managed for name, managed in agent.managed_agents.items()}
    parts["its code executor, "] = getattr(agent, "python_executor", None)
    for name, part in parts.items():
        try:
            _copied(part, agent)
        except Exception:  # noqa: BLE001 - the caller reports the error
            return name
    return ""
