"""A LangChain runnable or LangGraph graph as an agentrl workflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langsmith import tracing_context

from agentrl_langchain.routing import route_to_policy

if TYPE_CHECKING:
    from langchain_core.runnables import Runnable, RunnableConfig


class LangChainWorkflow:
    """Runs one built agent for every record; its chat models answer with the record's own policy session.

    The task's row is the agent's input: `messages` (or `query` as one user message) and every other key, so that
    a graph with a state schema of its own finds its fields. The reward comes from the task's scorer.

    recursion_limit: LangGraph's bound on super-steps of one episode.
    """

    def __init__(self, agent: Runnable[Any, Any], *, recursion_limit: int = 100) -> None:
        self._agent = agent
        self._config: RunnableConfig = {"recursion_limit": recursion_limit}

    async def run(self, data: dict[str, Any]) -> None:
        """Invoke the agent on one task."""
        with route_to_policy(), tracing_context(enabled=False):
            await self._agent.ainvoke(data, config=self._config)
