"""Load a workflow in a worker of the run's own interpreter: resolved as in the run, with a shared HTTP client."""

from __future__ import annotations

import multiprocessing.spawn
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_core.api import context as workflow_context
from agentrl_core.http.borrowed_clients import close_borrowed
from agentrl_core.http.shared_client import SharedClient
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.subproc.own_tools import OwnTools, marking
from agentrl_core.rollout.workflow_call import WorkflowCall
from agentrl_core.rollout.workflows import resolve_workflow

if TYPE_CHECKING:
    from agentrl_core.rollout.subproc.inside.tools import Asking


class OwnWorkflow:
    """The loaded workflow: `function(data, **arguments)`; `accepted` are the injected arguments that it takes."""

    def __init__(self, start: Mapping[str, Any], payload: bytes) -> None:
        if start["main"] is not None:
            multiprocessing.spawn.prepare(start["main"])
        places: Mapping[str, str] = start["places"]
        workflow, block = pickle.loads(payload)  # noqa: S301 - written by the run
        resolved = resolve_workflow(
            workflow,
            registry=load_registry(block),
            base_dir=Path(start["base_dir"]),
            where=lambda option: places.get(option) or f"{places['']}.{option}",
            has_engine=False,
        )
        if not isinstance(resolved.call, WorkflowCall):
            raise TypeError(f"{resolved.name} is not a function of a task's data")
        # multiprocessing imports the started script as `__mp_main__`; users know it as `__main__`.
        self.name = resolved.name.replace("__mp_main__", "__main__")
        self.function: Callable[..., Any] = resolved.call.function
        self.accepted = resolved.call.accepted
        self.http_client = SharedClient()

    async def close(self) -> None:
        """Close the HTTP clients that the agents shared."""
        await self.http_client.close_for_good()
        await close_borrowed()

    @staticmethod
    def tools_of(asking: Asking, *, tools: bool) -> dict[str, Any]:
        """Return what `workflow_context` has of the run's tools and marks."""
        return {"add_mark": marking(asking), **({"tools": OwnTools(asking)} if tools else {})}

    @staticmethod
    def enter(episode: Mapping[str, Any]) -> None:
        """Make `workflow_context` return this episode in the running context."""
        workflow_context.enter(workflow_context.WorkflowContext(**episode))
