"""Adapter `openai-agents`: runs an agent of the OpenAI Agents SDK as a workflow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents import RunConfig, Runner
from agents.exceptions import (
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelRefusalError,
    OutputGuardrailTripwireTriggered,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
)
from agents.items import ToolCallOutputItem

from agentrl_core import Answer
from agentrl_core.api.inputs import agent_input
from agentrl_core.api.options import resolve, user_folders
from agentrl_core.errors import ConfigError
from agentrl_openai.agents_routing import install
from agentrl_openai.routing import route_to_policy

if TYPE_CHECKING:
    from agents import Agent, ModelResponse
    from agents.result import RunResultBase

ENDINGS = (
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelRefusalError,
    InputGuardrailTripwireTriggered,
    OutputGuardrailTripwireTriggered,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
)
"""Exceptions by which the SDK ends a run because of the policy's output: the episode is scored as it stands."""


class AgentsWorkflow:
    """Runs one agent for all records; every model of a run answers with the policy, in the session of its record.

    The agent's input is the row's `messages`, else its `query`. The reward comes from the task's scorer.

    `max_turns`: the runner's bound on LLM calls of one agent run; None: the SDK's default.
    `stream`: whether to stream the run, for agents that act while a reply arrives.
    `input_key`: the key of the row that is the agent's input.
    `context`: a function or class that makes the run's context object from the row, such as `file.py:make_context`;
    None: the context is the row itself, a dict.
    `run_config`: fields of the SDK's `RunConfig`, such as `{tool_not_found_behavior: return_error_to_model}`.
    """

    def __init__(
        self,
        agent: Agent[Any],
        *,
        max_turns: int | None = None,
        stream: bool = False,
        input_key: str | None = None,
        context: str | None = None,
        run_config: Mapping[str, Any] | None = None,
    ) -> None:
        self._agent = agent
        self._limits: dict[str, Any] = {} if max_turns is None else {"max_turns": max_turns}
        self._stream = stream
        self._input_key = input_key
        self._make_context = _context_maker(context)
        self._run_config = _run_config(run_config or {})
        install()

    async def run(self, data: dict[str, Any]) -> Answer | None:
        """Run the agent on one task. If a tool's output ended the run, return it as the answer to score."""
        given: Any = agent_input(data, input_key=self._input_key)
        context = self._make_context(data)
        settings: dict[str, Any] = {"context": context, "run_config": self._run_config, **self._limits}
        result: RunResultBase
        with route_to_policy():
            try:
                if self._stream:
                    result = streamed = Runner.run_streamed(self._agent, given, **settings)
                    # A streamed run is complete only when all of its events have been read.
                    async for _ in streamed.stream_events():
                        pass
                else:
                    result = await Runner.run(self._agent, given, **settings)
            except ENDINGS:
                return None
        by_tool = result.new_items and isinstance(result.new_items[-1], ToolCallOutputItem)
        return Answer(str(result.final_output)) if by_tool else None


def interaction_ids(result: RunResultBase) -> list[str]:
    """Return the interaction id of each LLM call of a run, in order, for workflows that return rewards by id.

    Calls of agents-as-tools are in the results of their own runs.
    """
    return [_interaction_id(response) for response in result.raw_responses]


def _interaction_id(response: ModelResponse) -> str:
    """Return the id of a response; the SDK keeps the id of a chat completion in the provider data of its items."""
    beside = (getattr(item, "provider_data", None) or {} for item in response.output)
    return str(next((data["response_id"] for data in beside if "response_id" in data), response.response_id))


def _context_maker(reference: str | None) -> Callable[[dict[str, Any]], Any]:
    if reference is None:
        return lambda data: data
    # The folder of the agent's file is in `sys.path` by now, so the name is found there, too.
    make = resolve(reference, [*user_folders(None), *map(Path, sys.path)]).value
    if not callable(make):
        raise ConfigError(
            f"workflow.context: {reference} is {type(make).__name__}; expected a function or class that makes a context"
        )
    return make


def _run_config(fields: Mapping[str, Any]) -> RunConfig:
    taken = {"model", "model_provider"} & fields.keys()
    if taken:
        raise ConfigError(f"workflow.run_config: {', '.join(sorted(taken))} cannot be set: the policy is the model")
    try:
        return RunConfig(**{"tracing_disabled": True, **fields})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"workflow.run_config: {error}") from error
