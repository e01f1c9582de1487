"""What can be found wrong with a config before a run starts, beyond the config itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.data.jsonl import load_tasks
from agentrl_core.errors import DataError, PluginError, UsageError
from agentrl_core.losses import split_options
from agentrl_core.nearest import did_you_mean
from agentrl_core.plugins import load_registry
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.scorers.call import NormalizedScorer, normalize_scorer

if TYPE_CHECKING:
    from agentrl_core.config import LoadedConfig
    from agentrl_core.config.schema import Component
    from agentrl_core.registry import Registry
    from agentrl_core.types import Task


def check_config(loaded: LoadedConfig) -> tuple[Sequence[str], Sequence[str]]:
    """Return a line for each problem, and one for each thing that may become one.

    Components that are nothing but values are built; of the others, which open files and load weights, only the
    names of the options are checked.
    """
    run = loaded.run
    checks = _Checks(loaded, load_registry(run.plugins.block, on_error=run.plugins.on_error))
    problems = [*checks.model(), *checks.components(), *checks.workflow(), *checks.tasks()]
    return list(dict.fromkeys(problems)), checks.notes


class _Checks:
    """The checks of one config, each yielding a line for everything that it finds wrong."""

    def __init__(self, loaded: LoadedConfig, registry: Registry) -> None:
        self._loaded, self._run, self._registry = loaded, loaded.run, registry
        self.notes: list[str] = []

    def model(self) -> Iterator[str]:
        model, where = self._run.model, self._loaded.where
        if model.use is not None:
            yield from self._with_options("models", "model", model.use, model.options)
        elif model.path is None:
            yield f"{where('model')}: name the policy: `path: FOLDER` of a model, or `use: tiny`"
        else:
            folder = self._loaded.base_dir / Path(model.path).expanduser()
            if not (folder / "config.json").is_file():
                yield f"{where('model.path')}: {folder} is not a model directory: it has no config.json"

    def components(self) -> Iterator[str]:
        run = self._run
        yield from self._with_options("engines", "engine", run.engine.use, run.engine.options)
        yield from self._with_options("stores", "store", run.store.use, run.store.options)
        for index, item in enumerate(run.trackers):
            yield from self._with_options("trackers", f"trackers.{index}", item.use, item.options)
        yield from self._with_options("tool_parsers", "gateway.tool_parser", run.gateway.tool_parser, {})
        yield from _problems(self._build_loss)
        yield from self._built("advantages", "advantage", run.advantage)
        yield from self._built("credits", "credit", run.credit, turn_discount=run.rollout.agent.turn_discount)
        for index, item in enumerate(run.filters):
            yield from self._built("filters", f"filters.{index}", item)

    def workflow(self) -> Iterator[str]:
        yield from _problems(
            lambda: resolve_workflow(
                self._run.workflow,
                registry=self._registry,
                base_dir=self._loaded.base_dir,
                where=self._loaded.places("workflow"),
            )
        )

    def tasks(self) -> Iterator[str]:
        """Read the task files, and see whether their scorers can score them."""
        data = self._run.data
        sources = {"data.train": data.train}
        if isinstance(data.eval, str):
            sources["data.eval"] = data.eval
        else:
            sources |= {f"data.eval.{name}": source for name, source in (data.eval or {}).items()}
        for key, source in sources.items():
            try:
                tasks = self._read(key, source)
            except UsageError as error:
                yield str(error)
            else:
                yield from self._scorers(source, tasks)

    def _read(self, key: str, source: str) -> Sequence[Task]:
        """Read a task file; of a registered data set, see only that it is there."""
        path = self._loaded.base_dir / Path(source).expanduser()
        if path.is_file():
            return load_tasks(path)
        if source.endswith((".jsonl", ".json")):
            raise DataError(f"{self._loaded.where(key)}: no such task file: {path}")
        self._find("datasets", source, self._loaded.where(key))
        return ()

    def _scorers(self, source: str, tasks: Sequence[Task]) -> Iterator[str]:
        by_scorer: dict[str | None, list[Task]] = {}
        for task in tasks:
            by_scorer.setdefault(task.scorer, []).append(task)
        for name, its_tasks in by_scorer.items():
            try:
                scorer = self._scorer(name or self._run.data.default_scorer)
            except PluginError as error:
                if name is None:
                    self._note_default(source, len(its_tasks))
                else:
                    yield f"{source}: task '{its_tasks[0].id}': {error}"
                continue
            unanswered = [task.id for task in its_tasks if task.answer is None] if scorer.needs_reference else []
            if unanswered:
                text = f"{source}: {len(unanswered)} tasks have no `answer`, task '{unanswered[0]}' first"
                if name is None:
                    self.notes.append(f"{text}: data.default_scorer '{scorer.name}' cannot score them")
                else:
                    yield f"{text}; their scorer '{name}' needs one"

    def _note_default(self, source: str, count: int) -> None:
        name = self._run.data.default_scorer
        self.notes.append(
            f"{source}: {count} tasks name no scorer, and data.default_scorer '{name}' is not installed: "
            "the workflow must return their rewards"
        )

    def _scorer(self, name: str) -> NormalizedScorer:
        return normalize_scorer(self._registry.load("scorers", name, base_dir=self._loaded.base_dir), name)

    def _build_loss(self) -> None:
        loss = self._run.loss
        options, _ = split_options(loss.options)
        self._build("losses", "loss", attrs.evolve(loss, options=options))

    def _built(self, kind: str, key: str, component: Component, **injected: Any) -> Iterator[str]:
        yield from _problems(lambda: self._build(kind, key, component, **injected))

    def _build(self, kind: str, key: str, component: Component, **injected: Any) -> Any:
        places, base_dir = self._loaded.places(key), self._loaded.base_dir
        return self._registry.build(kind, component, where=places, base_dir=base_dir, **injected)

    def _find(self, kind: str, name: str, where: str) -> Any:
        return self._registry.load(kind, name, base_dir=self._loaded.base_dir, where=where)

    def _with_options(self, kind: str, key: str, name: str, options: Mapping[str, Any]) -> Iterator[str]:
        """Import a component, and look its options up in its signature."""
        places = self._loaded.places(key)
        found: list[Any] = []
        yield from _problems(lambda: found.append(self._find(kind, name, places(""))))
        for target in found:
            parameters = inspect.signature(target).parameters
            if any(item.kind is item.VAR_KEYWORD for item in parameters.values()):
                continue
            for option in options:
                if option not in parameters:
                    yield f"{places(option)}: unknown option of {name}{did_you_mean(option, parameters)}"


def _problems(action: Callable[[], object]) -> Iterator[str]:
    """Yield what `action` finds wrong with what the user wrote."""
    try:
        action()
    except UsageError as error:
        yield str(error)
