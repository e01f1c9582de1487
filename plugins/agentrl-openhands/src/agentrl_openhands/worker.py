"""Adapter `openhands`: runs an OpenHands agent as a workflow, inside a worker process of OpenHands' own interpreter.

It may import only the standard library of Python 3.12, OpenHands and this package, because agentrl is not installed
there.
"""

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
"""Variables by which OpenHands, when it is imported, decides to send data about agents to third parties."""


def prepare() -> None:
    """Set up this process before an agent's module is imported: turn off tracing and downloads."""
    os.environ.update(_QUIET)
    for name in _TRACING:
        os.environ.pop(name, None)


def adapt(
    agent: object, options: Mapping[str, Any], factory: Callable[[], object] | None = None
) -> OpenHandsWorkflow | None:
    """Wrap an agent of OpenHands; return None for other objects."""
    if not any(base.__module__.startswith("openhands.sdk.") for base in type(agent).__mro__):
        return None
    from openhands.sdk import AgentBase

    if not isinstance(agent, AgentBase):
        return None
    # Again, because no worker has called it if OpenHands is installed together with agentrl.
    prepare()
    return OpenHandsWorkflow(factory or (lambda: _copy(agent)), **options)


@dataclasses.dataclass(frozen=True)
class Answer:
    """Answer for the scorer; the run treats it like `agentrl_core.Answer`, which cannot be imported here."""

    text: str


class OpenHandsWorkflow:
    """Runs the agent on each task in a new conversation; its LLMs answer with the episode's policy.

    `fresh` returns the agent for the next conversation. The row's user message, or its `query`, is the first message.
    The workspace is a temporary folder. The reward comes from the task's scorer.
    `max_iterations`: bound on the steps of one episode. `input_key`: the key of the row that is the agent's input.
    """

    def __init__(self, fresh: Callable[[], Any], *, max_iterations: int = 50, input_key: str | None = None) -> None:
        self._fresh = fresh
        self._max_iterations = max_iterations
        self._input_key = input_key

    def run(self, data: dict[str, Any], *, base_url: str, api_key: str) -> Answer:
        """Run the agent on one task and return its last reply, for the scorer."""
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
                # The run reports the original error rather than OpenHands' wrapper of it.
                raise error.original_exception from None
            finally:
                conversation.close()


def _copy(agent: Any) -> Any:
    """Return a copy of the agent as it was built: a conversation adds tools to it, and its LLM sums up costs."""
    agent.llm.reset_metrics()
    return agent.model_copy()
