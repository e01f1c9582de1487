"""From a workflow to one that runs in processes of its own, checked by starting the first."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_core.concurrency.secrecy import seal
from agentrl_core.config.schema import Component
from agentrl_core.errors import ConfigError
from agentrl_core.plugins.options import place
from agentrl_core.rollout.subproc.launch import INSIDE, plan
from agentrl_core.rollout.subproc.pool import Workers
from agentrl_core.rollout.workflows import ResolvedWorkflow

if TYPE_CHECKING:
    from agentrl_core.config.schema import RolloutConfig
    from agentrl_core.plugins.options import Where
    from agentrl_core.plugins.registry import Registry

_SHORTEST_LIMIT_S = 60.0


def resolve_in_workers(
    workflow: object,
    *,
    registry: Registry,
    base_dir: Path,
    where: Where = "workflow",
    rollout: RolloutConfig,
    agent_where: Callable[[str], str] = "rollout.agent.{}".format,
    block: Collection[str] = (),
) -> ResolvedWorkflow:
    """Find, build and check a workflow in a first worker process; whoever asks closes the `workers`.

    Takes what `resolve_workflow` takes. An object is pickled once, a name looked up in each worker. `block` are
    distributions that may not plug in there. From now on other processes of this user, as those of agents are, cannot
    read the memory and the environment of this one. Raises
    `UsageError` for what is wrong with the workflow or the interpreter, `RunError` where a worker cannot start.
    """
    if INSIDE in os.environ:
        raise ConfigError(
            f"{place(where)}: a worker process has run the script that trains, and come to the training again; put "
            "that under `if __name__ == '__main__':`, or the agent in a module of its own"
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
    seal()
    workers = Workers(launch, most=rollout.agent.subproc_max_workers)
    workers.start()
    return ResolvedWorkflow(workers.name, workers, workers)
