"""Hooks of agentrl-anthropic: adapt Claude agents, and objects that hold an Anthropic client.

No SDK is imported before a config names such an agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from agentrl_core import hookimpl

if TYPE_CHECKING:
    from agentrl_core import Register
    from agentrl_core.api.workflow import Workflow

_CLIENTS = ("Anthropic", "AsyncAnthropic")


@hookimpl
def register_adapters(register: Register[Any]) -> None:
    """Register both adapters, for `agentrl plugins list`."""
    register("claude-agent", "agentrl_anthropic.claude_agent:ClaudeAgentWorkflow", summary="Claude Agent SDK")
    register(
        "anthropic", "agentrl_anthropic.client_workflow:ClientWorkflow", summary="objects that hold an Anthropic client"
    )


# Last: agents of other frameworks hold Anthropic clients too, and their own packages adapt them.
@hookimpl(trylast=True)
def adapt_agent(agent: object, options: Mapping[str, Any]) -> Workflow | None:
    """Wrap `ClaudeAgentOptions`, or a callable object that holds an `Anthropic` or `AsyncAnthropic` client."""
    from agentrl_core.api.adapters.called_object import holds_client
    from agentrl_core.api.options import construct

    made: Any = None
    # Compared by name, so that agents of other frameworks do not cause an import of the SDK.
    if (type(agent).__module__.partition(".")[0], type(agent).__name__) == ("claude_agent_sdk", "ClaudeAgentOptions"):
        from agentrl_anthropic.claude_agent import ClaudeAgentWorkflow

        made = construct(ClaudeAgentWorkflow, options, name="claude-agent", where="workflow", injected={"agent": agent})
    elif ("method" in options or callable(agent)) and holds_client(agent, "anthropic", _CLIENTS):
        from agentrl_anthropic.client_workflow import ClientWorkflow

        made = construct(ClientWorkflow, options, name="anthropic", where="workflow", injected={"agent": agent})
    return cast("Workflow | None", made)
