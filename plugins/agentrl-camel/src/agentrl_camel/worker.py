"""Adapter `camel`: runs a CAMEL agent as a workflow, inside a worker process of CAMEL's own interpreter.

It may import only the standard library, CAMEL and this package, because agentrl is not installed there.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

from agentrl_camel.tasks import as_text

_TRACING = ("AGENTOPS_API_KEY", "LANGFUSE_ENABLED", "TRACEROOT_ENABLED")
"""Variables by which CAMEL, when it is imported, decides to send data about agents to third parties."""


def prepare() -> None:
    """Set up this process before an agent's module is imported: turn off tracing and downloads."""
    for name in _TRACING:
        os.environ.pop(name, None)
    if importlib.util.find_spec("camel") is not None:
        from agentrl_camel.counting import count_without_downloads

        count_without_downloads()


def adapt(
    agent: object, options: Mapping[str, Any], factory: Callable[[], object] | None = None
) -> CamelWorkflow | None:
    """Wrap a `ChatAgent` or an object of a subclass; return None for other objects."""
    if not any(base.__module__.partition(".")[0] == "camel" for base in type(agent).__mro__):
        return None
    from camel.agents import ChatAgent

    if not isinstance(agent, ChatAgent):
        return None
    # Again, because no worker has called it if CAMEL is installed together with agentrl.
    prepare()
    return CamelWorkflow(factory or (lambda: _reset(agent)), **options)


class CamelWorkflow:
    """Runs a `ChatAgent` without history on each task; its models answer with the episode's policy.

    `fresh` returns the agent for the next episode. The row's user message, or its `query`, is the agent's input. The
    reward comes from the task's scorer.
    `input_key`: the key of the row to use as the input instead.
    """

    def __init__(self, fresh: Callable[[], Any], *, input_key: str | None = None) -> None:
        self._fresh = fresh
        self._input_key = input_key

    async def run(self, data: dict[str, Any], *, base_url: str, api_key: str) -> None:
        """Run the agent on one task; the scorer reads its last reply."""
        from agentrl_camel.routing import route_to_policy

        asked = as_text(data, self._input_key)
        agent = self._fresh()
        agent.retry_attempts = 1  # a call that the gateway refuses once is refused again
        async with route_to_policy(base_url, api_key):
            response = await agent.astep(asked)
            # A streamed response is awaitable: awaiting it waits for its end.
            if inspect.isawaitable(response):
                await response


def _reset(agent: Any) -> Any:
    agent.reset()
    return agent
