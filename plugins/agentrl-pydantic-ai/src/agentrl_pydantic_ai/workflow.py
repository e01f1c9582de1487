"""Adapter `pydantic-ai`: runs a Pydantic AI agent as a workflow."""

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
    """Runs one agent for all records; its models answer with the policy, in the session of the record.

    The input is the row's `messages` or its `query`. The last user message is the prompt, the messages before it are
    the message history, and a system message at the beginning is added to the agent's instructions. The reward comes
    from the task's scorer, which scores the agent's output.

    `deps`: function or class that makes the agent's dependencies from the row, or its name (`my_agent.py:make_deps`).
    `usage_limits`: fields of Pydantic AI's `UsageLimits`, for each episode.
    `give_up`: outcome of an episode in which the policy reached a usage limit or used up the agent's retries. `score`
    scores an empty answer; `fail` excludes the episode from training.
    `input_key`: the key of the row to use instead of `messages` and `query`.
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
                f"workflow: the agent needs deps of type {agent.deps_type.__qualname__}; fix: name a function that "
                "makes them from a task's row in workflow.deps: {use: …, deps: 'my_agent.py:make_deps'}"
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
    """Return the output as text; None if it is the text of the last reply, which the scorer reads by itself."""
    if result.output == result.response.text:
        return None
    return Answer(result.output if isinstance(result.output, str) else to_json(result.output, fallback=str).decode())


def _any_model() -> OpenAIChatModel:
    """Return a model for an agent that has none: a run needs one, and the policy then stands in for it."""
    here = workflow_context.get()
    client = AsyncOpenAI(base_url=f"{here.base_url}/v1", api_key=here.api_key, http_client=here.http_client)
    return OpenAIChatModel("default", provider=OpenAIProvider(openai_client=client))


def _find(name: str, base_dir: Path | None) -> Callable[[dict[str, Any]], Any]:
    """Return the function or class that `deps` names, resolved like all names in a config."""
    found = resolve(name, user_folders(base_dir)).value
    if not callable(found):
        raise ConfigError(f"workflow.deps: '{name}' is of type {type(found).__name__}, expected a function of the row")
    return found
