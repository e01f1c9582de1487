"""What this package plugs into agentrl; CAMEL itself is imported in its own interpreter alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from agentrl_core import hookimpl

if TYPE_CHECKING:
    from agentrl_core import Register
    from agentrl_core.api.workflow import Workflow


@hookimpl
def register_worker_adapters(register: Register[Any]) -> None:
    """Name the adapter, for workers in CAMEL's interpreter."""
    register("camel", "agentrl_camel.worker:adapt", summary="CAMEL ChatAgents, in an interpreter of their own")


@hookimpl
def adapt_agent(agent: object, options: Mapping[str, Any], factory: Callable[[], object] | None) -> Workflow | None:
    """Wrap an agent where CAMEL is installed beside agentrl: the same code, with one episode per process."""
    if not any(base.__module__.partition(".")[0] == "camel" for base in type(agent).__mro__):
        return None
    from agentrl_camel.worker import adapt

    return cast("Workflow | None", adapt(agent, options, factory))
