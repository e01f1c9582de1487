"""Hooks of agentrl-pydantic-ai: adapt Pydantic AI agents.

Pydantic AI is not imported before a config names such an agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agentrl_core import hookimpl

if TYPE_CHECKING:
    from agentrl_core import Register
    from agentrl_core.api.workflow import Workflow


@hookimpl
def register_adapters(register: Register[Any]) -> None:
    """Register the adapter, for `agentrl plugins list`."""
    register("pydantic-ai", "agentrl_pydantic_ai.workflow:PydanticAIWorkflow", summary="Pydantic AI agents")


@hookimpl
def adapt_agent(agent: object, options: Mapping[str, Any], base_dir: Path | None) -> Workflow | None:
    """Wrap a Pydantic AI agent, including agents that wrap another one."""
    # Compared by name, so that agents of other frameworks do not cause an import of Pydantic AI.
    if "pydantic_ai" not in {base.__module__.partition(".")[0] for base in type(agent).__mro__}:
        return None
    from pydantic_ai.agent import AbstractAgent

    if not isinstance(agent, AbstractAgent):
        return None
    from agentrl_core.api.options import construct
    from agentrl_pydantic_ai.workflow import PydanticAIWorkflow

    injected = {"agent": agent, "base_dir": base_dir}
    made = construct(PydanticAIWorkflow, options, name="pydantic-ai", where="workflow", injected=injected)
    return cast("Workflow", made)
