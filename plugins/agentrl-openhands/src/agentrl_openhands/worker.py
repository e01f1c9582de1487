"""Makes a workflow of an OpenHands agent, in OpenHands' own interpreter: needs nothing but it and Python 3.12."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from agentrl_openhands.tasks import as_text

_QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else its import downloads a table of prices
    "OPENHANDS_SUPPRESS_BANNER": "1",
}
_TRACING = (
    "LMNR_PROJECT_API_KEY",
    "OTEL_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)
"""What OpenHands reads when it is imported: whom to tell what its agents do."""


def prepare() -> None:
    """Set up this process before an agent's module is imported: no tracing, no downloads."""
    os.environ.update(_QUIET)
    for name in _TRACING:
        os.environ.pop(name, None)


def adapt(
    agent: object, options: Mapping[str, Any], factory: Callable[[], object] | None = None
) -> OpenHandsWorkflow | None:
    """Wrap an `Agent` of OpenHands, or anything derived from it; None if it is something else."""
    if not any(base.__module__.startswith("openhands.sdk.") for base in type(agent).__mro__):
        return None
    from openhands.sdk import AgentBase

    if not isinstance(agent, AgentBase):
        return None
    prepare()
    return OpenHandsWorkflow(factory or (lambda: _copy(agent)), **options)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the run takes for its own `Answer`, which is not here."""

    text: str


class OpenHandsWorkflow:
    """Gives each task to the agent in a conversation of its own; its LLMs answer with the episode's policy.

    `fresh` returns the agent of the next conversation. The row's user message, or its `query`, begins it, and its
    workspace is a temporary folder; the reward comes from the task's scorer.
    `max_iterations`: bound on the steps of one episode. `input_key`: the key of the row that is the agent's input.
    """

    def __init__(self, fresh: Callable[[], Any], *, max_iterations: int = 50, input_key: str | None = None) -> None:
        self._fresh = fresh
        self._max_iterations = max_iterations
        self._input_key = input_key

    def run(self, data: dict[str, Any], *, base_url: str, api_key: str) -> Answer:
        """Let the agent work on one task, and return what it says last, for the scorer."""
        from openhands.sdk import Conversation
        from openhands.sdk.conversation.exceptions import ConversationRunError
        from openhands.sdk.conversation.response_utils import get_agent_final_response

        from agentrl_openhands.routing import route_to_policy

        asked = as_text(data, self._input_key)
        with tempfile.TemporaryDirectory(prefix="agentrl-") as workspace, route_to_policy(base_url, api_key):
            conversation = Conversation(
                self._fresh(),
                workspace=workspace,
                max_iteration_per_run=self._max_iterations,
                visualizer=None,
            )
            try:
                conversation.send_message(asked)
                conversation.run()
                return Answer(get_agent_final_response(conversation.state.events))
            except ConversationRunError as error:
                raise error.original_exception from None
            finally:
                conversation.close()


def _copy(agent: Any) -> Any:
    """Return the agent as it was built: a conversation gives it tools, and its LLM counts what that cost."""
    agent.llm.reset_metrics()
    return agent.model_copy()
