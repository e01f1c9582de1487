"""What this package plugs into agentrl; imports no SDK until an agent of it is named."""

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
    """Name the adapters, for `agentrl plugins list`."""
    register("claude-agent", "agentrl_anthropic.claude_agent:ClaudeAgentWorkflow", summary="Claude Agent SDK")
    register(
        "anthropic", "agentrl_anthropic.client_workflow:ClientWorkflow", summary="objects that hold an Anthropic client"
    )


@hookimpl(trylast=True)  # models of other frameworks hold clients too, and are those frameworks' to adapt
def adapt_agent(agent: object, options: Mapping[str, Any]) -> Workflow | None:
    """Wrap the options of a Claude agent, or an object to call that holds an `Anthropic` or `AsyncAnthropic` client."""
    from agentrl_core.api.adapters.called_object import holds_client
    from agentrl_core.api.options import construct

    made: Any = None
    if (type(agent).__module__.partition(".")[0], type(agent).__name__) == ("claude_agent_sdk", "ClaudeAgentOptions"):
        from agentrl_anthropic.claude_agent import ClaudeAgentWorkflow

        made = construct(ClaudeAgentWorkflow, options, name="claude-agent", where="workflow", injected={"agent": agent})
    elif ("method" in options or callable(agent)) and holds_client(agent, "anthropic", _CLIENTS):
        from agentrl_anthropic.client_workflow import ClientWorkflow

        made = construct(ClientWorkflow, options, name="anthropic", where="workflow", injected={"agent": agent})
    return cast("Workflow | None", made)
