"""Hooks of agentrl-smolagents: adapt agents of smolagents.

smolagents is not imported before a config names such an agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agentrl_core import hookimpl

if TYPE_CHECKING:
    from agentrl_core import Register
    from agentrl_core.api.workflow import Workflow


@hookimpl
def register_adapters(register: Register[Any]) -> None:
    """Register the adapter, for `agentrl plugins list`."""
    register("smolagents", "agentrl_smolagents.workflow:SmolagentsWorkflow", summary="agents of smolagents")


@hookimpl
def adapt_agent(
    agent: object, options: Mapping[str, Any], factory: Callable[[], object] | None, base_dir: Path | None
) -> Workflow | None:
    """Wrap a multi-step agent of smolagents; each record gets a new one from `factory`, or a copy without one."""
    # Compared by name, so that agents of other frameworks do not cause an import of smolagents.
    if "smolagents" not in {base.__module__.partition(".")[0] for base in type(agent).__mro__}:
        return None
    from smolagents import MultiStepAgent

    if not isinstance(agent, MultiStepAgent):
        return None
    from agentrl_core.api.options import construct
    from agentrl_smolagents.workflow import SmolagentsWorkflow

    injected = {"agent": agent, "factory": factory, "base_dir": base_dir}
    made = construct(SmolagentsWorkflow, options, name="smolagents", where="workflow", injected=injected)
    return cast("Workflow", made)
