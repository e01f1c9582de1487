"""Makes a workflow of a CAMEL agent, in CAMEL's own interpreter: needs the standard library and CAMEL alone."""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

from agentrl_camel.tasks import as_text

_TRACING = ("AGENTOPS_API_KEY", "LANGFUSE_ENABLED", "TRACEROOT_ENABLED")
"""What CAMEL reads when it is imported: whether to tell third parties what its agents do."""


def prepare() -> None:
    """Set up this process before an agent's module is imported: no tracing, no downloads."""
    for name in _TRACING:
        os.environ.pop(name, None)
    if importlib.util.find_spec("camel") is not None:
        from agentrl_camel.counting import count_without_downloads

        count_without_downloads()


def adapt(
    agent: object, options: Mapping[str, Any], factory: Callable[[], object] | None = None
) -> CamelWorkflow | None:
    """Wrap a `ChatAgent`, or anything derived from it; None if it is something else."""
    if not any(base.__module__.partition(".")[0] == "camel" for base in type(agent).__mro__):
        return None
    from camel.agents import ChatAgent

    if not isinstance(agent, ChatAgent):
        return None
    prepare()
    return CamelWorkflow(factory or (lambda: _reset(agent)), **options)


class CamelWorkflow:
    """Lets a `ChatAgent` answer each task from a fresh start; its models answer with the episode's policy.

    `fresh` returns the agent of the next episode. The row's user message, or its `query`, is the agent's input; the
    reward comes from the task's scorer.
    `input_key`: the key of the row that is the agent's input in their place.
    """

    def __init__(self, fresh: Callable[[], Any], *, input_key: str | None = None) -> None:
        self._fresh = fresh
        self._input_key = input_key

    async def run(self, data: dict[str, Any], *, base_url: str, api_key: str) -> None:
        """Let the agent answer one task."""
        from agentrl_camel.routing import route_to_policy

        asked = as_text(data, self._input_key)
        agent = self._fresh()
        agent.retry_attempts = 1  # what the policy refuses once, it refuses again
        async with route_to_policy(base_url, api_key):
            response = await agent.astep(asked)
            if inspect.isawaitable(response):  # a stream: this waits for its end
                await response


def _reset(agent: Any) -> Any:
    agent.reset()
    return agent
