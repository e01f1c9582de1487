"""Everything that a run's config names, resolved and checked before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.config.schema import Component, RunConfig
from agentrl_core.data.jsonl import load_tasks
from agentrl_core.errors import ConfigError, DataError, PluginError, RunError
from agentrl_core.plugins import load_registry
from agentrl_core.rollout.workflows import ResolvedWorkflow, resolve_workflow
from agentrl_core.scorers.call import normalize_scorer

if TYPE_CHECKING:
    from agentrl_core.registry import Registry
    from agentrl_core.scorers.call import NormalizedScorer
    from agentrl_core.types import Task

_SCORER_PACKAGES = {"agentcpm": "agentrl-judge", "judge": "agentrl-judge", "math": "agentrl-math"}


@attrs.define(kw_only=True)
class Components:
    """What the config names, as objects; those that need the run's folder are built later by `build`."""

    config: RunConfig
    base_dir: Path
    registry: Registry
    where: Callable[[str], str]
    """Dotted config key -> `config.yaml:9: key`, for messages."""
    workflow: ResolvedWorkflow
    tasks: Sequence[Task]
    eval_sets: Mapping[str, Sequence[Task]]
    scorers: dict[str, NormalizedScorer]
    used: dict[str, str]
    """`kind:name` -> `dist==version module:attr`."""

    def build(self, kind: str, key: str, component: Component, **injected: Any) -> Any:
        """Construct a component and remember where it came from."""
        built = self.registry.build(kind, component, where=self.where(key), base_dir=self.base_dir, **injected)
        self.used[f"{kind}:{component.use}"] = self.registry.describe(kind, component.use, base_dir=self.base_dir)
        return built

    def scorer_for(self, task: Task) -> NormalizedScorer:
        """The scorer of a task whose workflow returned no reward; stops the run if it is not installed."""
        name = task.scorer or self.config.data.default_scorer
        if name not in self.scorers:
            try:
                self.scorers[name] = _load_scorer(self.registry, name, self.base_dir)
            except PluginError as error:
                package = _SCORER_PACKAGES.get(name)
                advice = f"pip install {package}, or " if package else ""
                raise RunError(
                    f"task '{task.id}' names no scorer and the workflow returned no reward, so it needs "
                    f"data.default_scorer '{name}': {error}. {advice}return a reward from the workflow, "
                    "name a `scorer` in the task, or set data.default_scorer"
                ) from error
        return self.scorers[name]


def resolve(
    config: RunConfig, base_dir: Path, *, workflow: object | None = None, where: Callable[[str], str] = str
) -> Components:
    """Load the registry, the tasks and the workflow; raise the first `UsageError` that would stop the run later."""
    registry = load_registry(config.plugins.block, on_error=config.plugins.on_error)
    registry.hooks.notify("configure", config=config)
    _check_modes(config, where)
    tasks = _read_tasks(registry, config.data.train, base_dir)
    eval_sets = {
        name: _read_tasks(registry, source, base_dir) for name, source in _eval_sources(config.data.eval).items()
    }
    for name, tasks_of_set in eval_sets.items():
        if not tasks_of_set:
            raise DataError(f"{where('data.eval')}: the task set '{name}' is empty")
    scorers = _check_scorers(registry, [*tasks, *(task for item in eval_sets.values() for task in item)], base_dir)
    resolved = resolve_workflow(
        config.workflow if workflow is None else workflow,
        registry=registry,
        base_dir=base_dir,
        where=where("workflow"),
    )
    components = Components(
        config=config,
        base_dir=base_dir,
        registry=registry,
        where=where,
        workflow=resolved,
        tasks=tasks,
        eval_sets=eval_sets,
        scorers=scorers,
        used={"workflow": resolved.name},
    )
    for name in scorers:
        components.used[f"scorers:{name}"] = registry.describe("scorers", name, base_dir=base_dir)
    return components


def _eval_sources(value: Mapping[str, str] | str | None) -> Mapping[str, str]:
    if value is None:
        return {}
    return {"eval": value} if isinstance(value, str) else value


def _read_tasks(registry: Registry, source: str, base_dir: Path) -> Sequence[Task]:
    """Tasks of a JSONL file, or of a registered data set."""
    path = (base_dir / source).resolve()
    if path.is_file() or source.endswith((".jsonl", ".json")):
        return load_tasks(path)
    loader: Callable[[], Sequence[Task]] = registry.load("datasets", source, base_dir=base_dir)
    return loader()


def _check_modes(config: RunConfig, where: Callable[[str], str]) -> None:
    if config.launcher.use != "local":
        raise ConfigError(f"{where('launcher')}: no launcher '{config.launcher.use}' is installed, only 'local'")
    if config.sampling.temperature == 0:
        raise ConfigError(f"{where('sampling.temperature')}: 0 never explores; expected more than 0, 1.0 for one")
    if config.rollout.agent.mode != "inline":
        raise ConfigError(
            f"{where('rollout.agent.mode')}: mode '{config.rollout.agent.mode}' is not available in this version; "
            "use 'inline'"
        )


def _check_scorers(registry: Registry, tasks: Sequence[Task], base_dir: Path) -> dict[str, NormalizedScorer]:
    """Load every scorer that a task names, and refuse tasks without the answer that it needs."""
    scorers: dict[str, NormalizedScorer] = {}
    for task in tasks:
        if task.scorer is None:
            continue
        if task.scorer not in scorers:
            try:
                scorers[task.scorer] = _load_scorer(registry, task.scorer, base_dir)
            except PluginError as error:
                package = _SCORER_PACKAGES.get(task.scorer)
                advice = f"; pip install {package}" if package else ""
                raise PluginError(f"task '{task.id}': {error}{advice}") from error
        if task.answer is None and scorers[task.scorer].needs_reference:
            raise DataError(f"task '{task.id}': its scorer '{task.scorer}' needs an `answer`, and the task has none")
    return scorers


def _load_scorer(registry: Registry, name: str, base_dir: Path) -> NormalizedScorer:
    return normalize_scorer(registry.load("scorers", name, base_dir=base_dir), name)
