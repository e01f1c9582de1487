"""A Pydantic AI agent as an agentrl workflow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openai import AsyncOpenAI
from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits
from pydantic_core import to_json

from agentrl_core import Answer, workflow_context
from agentrl_core.api.inputs import agent_input, as_messages
from agentrl_core.api.options import resolve, user_folders
from agentrl_core.errors import ConfigError
from agentrl_pydantic_ai.history import read_task
from agentrl_pydantic_ai.routing import install, route_to_policy

if TYPE_CHECKING:
    from pydantic_ai.agent import AbstractAgent
    from pydantic_ai.run import AgentRunResult


class PydanticAIWorkflow:
    """Runs one agent for every record; its models answer with the record's own policy session.

    The row's `messages`, or its `query`, are the agent's input: the last user message is the prompt, what stands
    before it the message history, and a system message in front goes beside the agent's own instructions. The
    task's scorer gives the reward; it judges the output, where that is not the text of the last reply.

    `deps`: makes the agent's dependencies from the row; a function or class, or where one is (`my_agent.py:make_deps`).
    `usage_limits`: the fields of Pydantic AI's `UsageLimits`, for each episode.
    `give_up`: what becomes of an episode in which the policy met a usage limit, or used up the agent's retries:
    `score` asks the scorer, with an empty answer; `fail` leaves it out of the training.
    `input_key`: the key of the row to take in place of `messages` and `query`.
    """

    def __init__(
        self,
        agent: AbstractAgent[Any, Any],
        *,
        deps: str | Callable[[dict[str, Any]], Any] | None = None,
        usage_limits: Mapping[str, Any] | None = None,
        give_up: str = "score",
        input_key: str | None = None,
        base_dir: Path | None = None,
    ) -> None:
        if give_up not in {"score", "fail"}:
            raise ValueError(f"'give_up' must be score or fail, found {give_up!r}")
        self._agent = agent
        self._make_deps = _find(deps, base_dir) if isinstance(deps, str) else deps
        if deps is None and agent.deps_type not in (object, type(None)):
            raise ConfigError(
                f"workflow: the agent needs deps of type {agent.deps_type.__qualname__}; name a function in "
                "workflow.deps that makes them from a task's row: {use: …, deps: 'my_agent.py:make_deps'}"
            )
        try:
            self._limits = None if usage_limits is None else UsageLimits(**usage_limits)
        except TypeError as error:
            raise ConfigError(f"workflow.usage_limits: {error}; expected fields of {UsageLimits.__name__}") from error
        self._scores_giving_up = give_up == "score"
        self._input_key = input_key
        install()

    async def run(self, data: dict[str, Any]) -> Answer | None:
        """Run the agent on one task."""
        task = read_task(as_messages(agent_input(data, input_key=self._input_key)), data.get("id"))
        deps = None if self._make_deps is None else self._make_deps(data)
        if inspect.isawaitable(deps):
            deps = await deps
        with route_to_policy():
            try:
                result = await self._agent.run(
                    task.prompt,
                    message_history=task.history,
                    instructions=task.instructions,
                    deps=deps,
                    usage_limits=self._limits,
                    model=_any_model() if self._agent.model is None else None,
                )
            except (UsageLimitExceeded, UnexpectedModelBehavior):
                if not self._scores_giving_up:
                    raise
                return Answer("")
        return _answer(result)


def _answer(result: AgentRunResult[Any]) -> Answer | None:
    """Return the output as text; None for the text of the last reply, which the scorer sees anyway."""
    if result.output == result.response.text:
        return None
    return Answer(result.output if isinstance(result.output, str) else to_json(result.output, fallback=str).decode())


def _any_model() -> OpenAIChatModel:
    """A model for an agent that has none, for the policy to take the place of."""
    here = workflow_context.get()
    client = AsyncOpenAI(base_url=f"{here.base_url}/v1", api_key=here.api_key, http_client=here.http_client)
    return OpenAIChatModel("default", provider=OpenAIProvider(openai_client=client))


def _find(name: str, base_dir: Path | None) -> Callable[[dict[str, Any]], Any]:
    """Import what `deps` names, as everything in a config."""
    found = resolve(name, user_folders(base_dir)).value
    if not callable(found):
        raise ConfigError(f"workflow.deps: '{name}' is of type {type(found).__name__}, expected a function of the row")
    return found
