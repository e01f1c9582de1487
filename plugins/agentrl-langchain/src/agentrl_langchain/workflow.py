"""Adapter `langchain`: runs a LangChain runnable or a LangGraph graph as a workflow."""

from __future__ import annotations

import contextlib
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.runnables import Runnable, RunnableConfig, RunnableSequence, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase

from agentrl_core import workflow_context
from agentrl_core.errors import DataError
from agentrl_langchain.routing import install, route_to_policy


class LangChainWorkflow:
    """Runs one agent for all records; its chat models answer with the policy, in the session of the record.

    The agent's input is the whole row: `messages` and all other keys, so that prompts and graphs with their own state
    find their fields. A chain that begins with a chat model gets only the `messages`. The reward comes from the task's
    scorer. A graph with a checkpointer gets a thread per record, which is deleted when the record ends.

    `recursion_limit`: LangGraph's bound on the super-steps of one episode; None: the agent's own.
    `input_key`: the key of the row that is the agent's whole input, for chains that take a text.
    """

    def __init__(
        self, agent: Runnable[Any, Any], *, recursion_limit: int | None = None, input_key: str | None = None
    ) -> None:
        self._agent = agent
        self._settings: RunnableConfig = {} if recursion_limit is None else {"recursion_limit": recursion_limit}
        self._input_key = input_key or ("messages" if _begins_with_model(agent) else None)
        self._checkpointer: Any = getattr(agent, "checkpointer", None)
        install()

    async def run(self, data: dict[str, Any]) -> None:
        """Invoke the agent on one task."""
        thread_id = workflow_context.get().record_id
        config: RunnableConfig = {**self._settings, "configurable": {"thread_id": thread_id}}
        try:
            with route_to_policy():
                await self._agent.ainvoke(self._input(data), config=config)
        finally:
            if hasattr(self._checkpointer, "adelete_thread"):
                with contextlib.suppress(NotImplementedError):  # such a checkpointer keeps its threads
                    await self._checkpointer.adelete_thread(thread_id)

    def _input(self, data: dict[str, Any]) -> Any:
        if self._input_key is None:
            return data
        if self._input_key not in data:
            raise DataError(
                f"task '{data.get('id')}' has no '{self._input_key}', which the workflow's input_key names; "
                f"it has {', '.join(data)}"
            )
        return data[self._input_key]


def _begins_with_model(runnable: Runnable[Any, Any]) -> bool:
    """Return whether the first step of a chain is a chat model, possibly with bound arguments or fallbacks."""
    while True:
        if isinstance(runnable, RunnableSequence):
            runnable = runnable.first
        elif isinstance(runnable, RunnableBindingBase):
            runnable = runnable.bound
        elif isinstance(runnable, RunnableWithFallbacks):
            runnable = runnable.runnable
        else:
            return isinstance(runnable, BaseChatModel)
