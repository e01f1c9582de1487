"""Hooks of agentrl-openai: adapt agents of the Agents SDK, and objects that hold an OpenAI client.

No SDK is imported before a config names such an agent.
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
    """Register both adapters, for `agentrl plugins list`."""
    register("openai-agents", "agentrl_openai.agents_workflow:AgentsWorkflow", summary="the OpenAI Agents SDK's agents")
    register("openai", "agentrl_openai.client_workflow:ClientWorkflow", summary="objects that hold an OpenAI client")


# Last: agents of other frameworks hold OpenAI clients too, and their own packages adapt them.
@hookimpl(trylast=True)
def adapt_agent(agent: object, options: Mapping[str, Any]) -> Workflow | None:
    """Wrap an `agents.Agent`, or a callable object that holds an `OpenAI` or `AsyncOpenAI` client."""
    from agentrl_core.api.options import construct

    # Compared by name, so that agents of other frameworks do not cause an import of the SDK.
    if any((base.__module__, base.__name__) == ("agents.agent", "Agent") for base in type(agent).__mro__):
        from agentrl_openai.agents_workflow import AgentsWorkflow

        made = construct(AgentsWorkflow, options, name="openai-agents", where="workflow", injected={"agent": agent})
        return cast("Workflow", made)
    from agentrl_core.api.adapters.called_object import holds_client

    if ("method" in options or callable(agent)) and holds_client(agent, "openai", {"OpenAI", "AsyncOpenAI"}):
        from agentrl_openai.client_workflow import ClientWorkflow

        made = construct(ClientWorkflow, options, name="openai", where="workflow", injected={"agent": agent})
        return cast("Workflow", made)
    return None
