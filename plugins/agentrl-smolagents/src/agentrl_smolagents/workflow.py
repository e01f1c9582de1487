"""Adapter `smolagents`: runs a new agent, or a copy of one, for each record."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agentrl_core import Answer
from agentrl_core.api.inputs import agent_input, as_text
from agentrl_core.api.options import resolve, user_folders
from agentrl_core.api.processes import call_on_thread
from agentrl_core.errors import ConfigError, DataError, PluginError
from agentrl_smolagents.isolation import copy_of, silence
from agentrl_smolagents.routing import install, route_to_policy

if TYPE_CHECKING:
    from smolagents import MultiStepAgent

Prepare = Callable[["MultiStepAgent", dict[str, Any]], object]


class SmolagentsWorkflow:
    """Runs a separate agent for each record, on a thread; its models answer with the policy, in the record's session.

    The agent comes from `factory`, else it is a copy of `agent`. The row's `query`, or the only user message of its
    `messages`, is the task; a system message is added to the agent's instructions. The reward comes from the task's
    scorer, which scores the agent's final answer.

    `max_steps`: bound on the steps of one episode; None: the agent's own.
    `additional_args`: keys of the row that are passed to `agent.run` as its additional arguments.
    `prepare`: function that is called with the record's agent and the row before the agent runs, or its name
    (`my_agent.py:prepare`).
    `input_key`: the key of the row to use instead of `messages` and `query`.
    """

    def __init__(
        self,
        agent: MultiStepAgent,
        *,
        factory: Callable[[], object] | None = None,
        max_steps: int | None = None,
        additional_args: tuple[str, ...] = (),
        prepare: str | Prepare | None = None,
        input_key: str | None = None,
        base_dir: Path | None = None,
    ) -> None:
        self._agent = agent
        self._factory = cast("Callable[[], MultiStepAgent] | None", factory)
        self._max_steps = max_steps
        self._additional_args = additional_args
        self._prepare = _find(prepare, base_dir) if isinstance(prepare, str) else prepare
        self._input_key = input_key
        install()
        # One copy on trial: an agent that cannot be copied is refused before the run starts.
        if factory is None:
            copy_of(agent)

    async def run(self, data: dict[str, Any]) -> Answer:
        """Run the agent on one task."""
        with route_to_policy() as route:
            agent = await call_on_thread(functools.partial(self._own_agent, data), name="agentrl-smolagents-build")
            work = functools.partial(self._run, agent, data)
            try:
                answer = await call_on_thread(work, name="agentrl-smolagents")
            except asyncio.CancelledError:
                agent.interrupt_switch = True
                raise
        # At the step limit smolagents asks for a final answer, and returns an exception of that call as the answer.
        if route.failure is not None:
            raise route.failure
        return answer

    def _own_agent(self, data: dict[str, Any]) -> MultiStepAgent:
        if self._factory is None:
            agent = copy_of(self._agent)
        else:
            agent = self._factory()
            silence(agent)
        if system := _system_prompt(data):
            agent.instructions = f"{agent.instructions}\n\n{system}" if agent.instructions else system
        if self._prepare is not None:
            self._prepare(agent, data)
        return agent

    def _run(self, agent: MultiStepAgent, data: dict[str, Any]) -> Answer:
        if missing := [key for key in self._additional_args if key not in data]:
            raise DataError(
                f"task '{data.get('id')}' has no '{missing[0]}', which the workflow's additional_args name; "
                f"it has {', '.join(data)}"
            )
        given = agent_input(data, input_key=self._input_key)
        # System messages are in the agent's instructions already.
        if not isinstance(given, str):
            given = [message for message in given if message.get("role") != "system"]
        text = as_text(given, task_id=data.get("id"))
        arguments = {key: data[key] for key in self._additional_args}
        try:
            output = agent.run(
                text, additional_args=arguments or None, max_steps=self._max_steps, return_full_result=False
            )
        finally:
            if self._factory is not None and hasattr(agent, "cleanup"):
                agent.cleanup()
        return Answer(_as_text(output))


def _system_prompt(data: Mapping[str, Any]) -> str:
    messages = data.get("messages")
    texts = [message["content"] for message in messages if message["role"] == "system"] if messages else []
    return "\n\n".join(texts)


def _as_text(output: Any) -> str:
    """Return a final answer as text: other objects as JSON if possible."""
    if output is None or isinstance(output, str):
        return output or ""
    try:
        return json.dumps(output, ensure_ascii=False)
    except TypeError:
        return str(output)


def _find(name: str, base_dir: Path | None) -> Prepare:
    """Return the function that `prepare` names, resolved like all names in a config."""
    try:
        found = resolve(name, user_folders(base_dir)).value
    except PluginError as error:
        raise ConfigError(f"workflow.prepare: {error}") from error
    if not callable(found):
        raise ConfigError(f"workflow.prepare: '{name}' is of type {type(found).__name__}, expected a function")
    return found
