"""What this package plugs into agentrl; imports no LangChain until an agent of it is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from agentrl_core import hookimpl

if TYPE_CHECKING:
    from agentrl_core import Register
    from agentrl_core.api.workflow import Workflow


@hookimpl
def register_adapters(register: Register[Any]) -> None:
    """Name the adapter, for `agentrl plugins list`."""
    register(
        "langchain", "agentrl_langchain.workflow:LangChainWorkflow", summary="LangChain runnables, LangGraph graphs"
    )


@hookimpl
def adapt_agent(agent: object, options: Mapping[str, Any]) -> Workflow | None:
    """Wrap any LangChain `Runnable`, a compiled LangGraph graph among them; a `StateGraph` is compiled first."""
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
