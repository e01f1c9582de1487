"""Hooks of agentrl-openhands: adapt OpenHands agents, in OpenHands' interpreter or in this one.

Usually OpenHands is installed only in its own interpreter, and imported only there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from agentrl_core import hookimpl

if TYPE_CHECKING:
    from agentrl_core import Register
    from agentrl_core.api.workflow import Workflow


@hookimpl
def register_worker_adapters(register: Register[Any]) -> None:
    """Register the adapter that workers in OpenHands' interpreter use."""
    register("openhands", "agentrl_openhands.worker:adapt", summary="OpenHands agents, in their own Python environment")


@hookimpl
def adapt_agent(agent: object, options: Mapping[str, Any], factory: Callable[[], object] | None) -> Workflow | None:
    """Wrap an agent, if OpenHands is installed together with agentrl; one process still runs one episode at a time."""
    if not any(base.__module__.partition(".")[0] == "openhands" for base in type(agent).__mro__):
        return None
    from agentrl_openhands.worker import adapt

    return cast("Workflow | None", adapt(agent, options, factory))
