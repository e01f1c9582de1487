"""Entry of mode subproc: turn a workflow into one that runs in worker processes, and check it by starting the first."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_core.concurrency.secrecy import seal
from agentrl_core.config.component import Component
from agentrl_core.errors import ConfigError
from agentrl_core.plugins.options import place
from agentrl_core.rollout.subproc.launch import INSIDE, plan
from agentrl_core.rollout.subproc.pool import WorkerPool

if TYPE_CHECKING:
    from agentrl_core.config.sampling_sections import RolloutConfig
    from agentrl_core.plugins.options import Where
    from agentrl_core.plugins.registry import Registry

_SHORTEST_LIMIT_S = 60.0
"""Least time that the first worker gets to load the workflow, even if the time limit of an episode is shorter."""
_HIDDEN = (
    "agents run in processes of their own, which cannot read this one: no debugger, no py-spy, no core dump, perhaps "
    "no CUDA IPC (rollout.agent.subproc_hide_run: false allows them, for agents that you trust)"
)


def resolve_in_workers(
    workflow: object,
    *,
    registry: Registry,
    base_dir: Path,
    where: Where = "workflow",
    rollout: RolloutConfig,
    agent_where: Callable[[str], str] = "rollout.agent.{}".format,
    block: Collection[str] = (),
) -> WorkerPool:
    """Find, build and check a workflow in a first worker process; the caller must close the pool.

    Takes the arguments of `resolve_workflow`. An object is pickled once, a name is looked up in each worker. `block`
    names distributions that must not plug in there. With `rollout.agent.subproc_hide_run`, other processes of this
    user, such as those of agents, cannot read this process's memory and environment from now on. Raises
    `UsageError` for a fault of the workflow or the interpreter, `RunError` if a worker cannot start.
    """
    if INSIDE in os.environ:
        raise ConfigError(
            f"{place(where)}: a worker process imported the training script, which started training again; put the "
            "training under `if __name__ == '__main__':`, or move the agent to another module"
        )
    launch = plan(
        Component(workflow) if isinstance(workflow, str) else workflow,
        registry=registry,
        base_dir=base_dir,
        where=where,
        agent=rollout.agent,
        agent_where=agent_where,
        limit_s=max(rollout.timeout_s, _SHORTEST_LIMIT_S),
        block=block,
    )
    # Before the first agent's process exists: it could otherwise read the admin key from /proc.
    is_hidden = rollout.agent.subproc_hide_run and seal()
    workers = WorkerPool(launch, most=rollout.agent.subproc_max_workers, notice=_HIDDEN if is_hidden else "")
    workers.start()
    return workers
