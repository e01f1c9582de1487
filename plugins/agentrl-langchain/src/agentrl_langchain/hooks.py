"""Hooks of agentrl-langchain: adapt LangChain runnables and LangGraph graphs.

LangChain is not imported before a config names such an agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from agentrl_core import hookimpl

if TYPE_CHECKING:
    from agentrl_core import Register
    from agentrl_core.api.workflow import Workflow


@hookimpl
def register_adapters(register: Register[Any]) -> None:
    """Register the adapter, for `agentrl plugins list`."""
    register(
        "langchain", "agentrl_langchain.workflow:LangChainWorkflow", summary="LangChain runnables, LangGraph graphs"
    )


@hookimpl
def adapt_agent(agent: object, options: Mapping[str, Any]) -> Workflow | None:
    """Wrap a LangChain `Runnable`, which includes compiled LangGraph graphs; compile a `StateGraph` first."""
    # Compared by name, so that agents of other frameworks do not cause an import of LangChain.
    modules = {base.__module__.partition(".")[0] for base in type(agent).__mro__}
    if not modules & {"langchain_core", "langgraph"}:
        return None
    if hasattr(agent, "compile") and not hasattr(agent, "ainvoke"):
        agent = agent.compile()
    if not hasattr(agent, "ainvoke"):
        return None
    from agentrl_core.api.options import construct
    from agentrl_langchain.workflow import LangChainWorkflow

    made = construct(LangChainWorkflow, options, name="langchain", where="workflow", injected={"agent": agent})
    return cast("Workflow", made)
