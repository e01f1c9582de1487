"""Start of a run: go through all of its checks, start the agent, and return everything that they built.

Raises every error that would stop the run later at once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core import config as configs
from agentrl_core.config.schema import RunConfig
from agentrl_core.errors import ConfigError, DataError
from agentrl_core.plugins.manager import load_registry
from agentrl_core.run.checks import NO_WORKFLOW, ONLINE_WORKFLOW, Checks, resolve_agent
from agentrl_core.run.component_checks import BuiltComponents
from agentrl_core.run.cpu_budget import wait_without_spinning
from agentrl_core.run.environment import named_variables, unknown_variables
from agentrl_core.run.loss import settled
from agentrl_core.scorers.table import check_scorers

if TYPE_CHECKING:
    from agentrl_core.api.members import Role
    from agentrl_core.config import LoadedConfig
    from agentrl_core.plugins.registry import Registry
    from agentrl_core.rollout.episode_source import EpisodeSource
    from agentrl_core.scorers.table import ScorerTable
    from agentrl_core.types import Task

logger = logging.getLogger(__name__)


@attrs.define(kw_only=True)
class RunComponents(BuiltComponents[RunConfig]):
    """Objects that the config of `agentrl run` names."""

    workflow: EpisodeSource | None
    """None with `rollout.agent.mode: online`, where agents outside of the run connect by themselves."""
    tasks: Sequence[Task]
    eval_sets: Mapping[str, Sequence[Task]]
    scorers: ScorerTable

    def close(self) -> None:
        """End the worker processes of the workflow, if any are left."""
        if self.workflow is not None:
            self.workflow.close_now()


def resolve(
    loaded: LoadedConfig[RunConfig],
    *,
    workflow: object | None = None,
    workflow_kwargs: Mapping[str, Any] | None = None,
    role: Role | None = None,
) -> RunComponents:
    """Load the registry, the tasks and the workflow; raise one `UsageError` for everything that would fail later.

    `workflow` replaces the config's workflow. `workflow_kwargs` are its options, in addition to those of the config.
    In the mode `subproc` the worker processes run when this returns; `RunComponents.close` ends them. With `role`, only
    what this member of a run needs is checked and loaded: `serve` has no tasks, and only `sample` has the workflow.
    """
    wait_without_spinning()
    config = loaded.run
    registry = load_registry(config.plugins.block, on_error=config.plugins.on_error)
    registry.hooks.notify("configure", config=config)
    checks = Checks(loaded, registry, load_datasets=True, binds=role in (None, "serve"))
    if role is not None and config.rollout.agent.mode == "online":
        raise ConfigError(
            f"{loaded.where('rollout.agent.mode')}: online agents open their sessions by themselves, so there is "
            "nothing to sample in a process of its own; use `agentrl run`"
        )
    found = {"serve": checks.serving, "sample": checks.sampling}.get(role or "", checks.all)
    if problems := list(dict.fromkeys(found())):
        raise ConfigError("\n".join(problems))
    unknown = unknown_variables(os.environ, named_variables(configs.dump(config)))
    for note in (*unknown, *check_scorers(checks.scorers.made, config.gateway)):
        logger.warning("%s", note)
    eval_sets = {
        key.removeprefix("data.").removeprefix("eval."): tasks
        for key, tasks in checks.task_sets.items()
        if key != "data.train"
    }
    for name, tasks in eval_sets.items():
        if not tasks:
            raise DataError(f"{loaded.where('data.eval')}: the task set '{name}' is empty; expected at least one task")
    if role in (None, "train"):
        loaded = attrs.evolve(loaded, run=settled(loaded, registry))
    resolved = None
    if role in (None, "sample"):
        resolved = _workflow(loaded, registry, config.workflow if workflow is None else workflow, workflow_kwargs)
    used = {} if resolved is None else {"workflow": resolved.name}
    if role == "train" and config.workflow is not None:
        used["workflow"] = config.workflow.use  # its samplers load it
    used |= {f"scorers:{name}": description for name, description in checks.scorers.used.items()}
    return RunComponents(
        loaded=loaded,
        registry=registry,
        early=checks.built.early,
        used=used | checks.built.used,
        workflow=resolved,
        tasks=checks.task_sets.get("data.train", ()),
        eval_sets=eval_sets,
        scorers=checks.scorers,
    )


def _workflow(
    loaded: LoadedConfig[RunConfig], registry: Registry, chosen: object | None, options: Mapping[str, Any] | None
) -> EpisodeSource | None:
    online = loaded.run.rollout.agent.mode == "online"
    if online != (chosen is None):
        raise ConfigError(f"{loaded.where('workflow')}: {ONLINE_WORKFLOW if online else NO_WORKFLOW}")
    if chosen is None:
        return None
    return resolve_agent(loaded, registry, chosen, options)
