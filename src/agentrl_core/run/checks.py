"""Checks that only `agentrl run` needs: tasks, scorers, agent, gateway, and options that contradict each other.

`config check`, `doctor` and the start of every run go through them. They add to `component_checks.py`, whose checks
`agentrl sft` has too; the package `config` has checked types and names before.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_core import config as configs
from agentrl_core.chat import Chat
from agentrl_core.concurrency.secrecy import withhold
from agentrl_core.config.component import AUTO
from agentrl_core.config.invocation import near
from agentrl_core.config.schema import RunConfig
from agentrl_core.data.tasks import line_of, load_tasks
from agentrl_core.errors import ConfigError, DataError, PluginError, RunError, UsageError
from agentrl_core.gateway.online.admin import exposed, key_from_environment
from agentrl_core.plugins.catalog import default_scorer
from agentrl_core.plugins.discovery import names_core
from agentrl_core.plugins.manager import load_registry
from agentrl_core.plugins.references import is_reference
from agentrl_core.rollout.subproc.resolving import resolve_in_workers
from agentrl_core.rollout.workflows import resolve_workflow, with_options
from agentrl_core.run.component_checks import ComponentChecks, problems_of
from agentrl_core.run.environment import named_variables, unknown_variables
from agentrl_core.run.group_ranking import unrankable
from agentrl_core.run.loss import settled
from agentrl_core.run.stores import withhold_secrets
from agentrl_core.scorers.table import NO_SCORER, ScorerTable
from agentrl_core.tools.entries import name_clashes

if TYPE_CHECKING:
    from agentrl_core.config import LoadedConfig
    from agentrl_core.config.component import Component
    from agentrl_core.plugins.registry import Registry
    from agentrl_core.rollout.episode_source import EpisodeSource
    from agentrl_core.types import Task


NO_WORKFLOW = "the agent is missing; set `workflow: my_module.MyAgent` or `workflow: {use: file.py:Agent}`"
ONLINE_WORKFLOW = "with rollout.agent.mode online the run starts no agent: leave `workflow` out; agents open sessions"
NO_TASKS = "the tasks are missing; set a JSONL file: `data: {train: tasks.jsonl}`"


def check_config(loaded: LoadedConfig[RunConfig]) -> tuple[Sequence[str], Sequence[str]]:
    """Return a line for each problem, and a line for each note on something that may become a problem.

    Components that only hold values (losses, filters, …) are built. For the others, which open files and load weights,
    only the names of the options are checked.
    """
    run = loaded.run
    checks = Checks(loaded, load_registry(run.plugins.block, on_error=run.plugins.on_error))
    return list(dict.fromkeys([*checks.all(), *checks.workflow()])), checks.notes


class Checks(ComponentChecks[RunConfig]):
    """Checks of the config of `agentrl run`; each check yields one line per problem."""

    def __init__(
        self, loaded: LoadedConfig[RunConfig], registry: Registry, *, load_datasets: bool = False, binds: bool = True
    ) -> None:
        """Prepare the checks.

        `load_datasets` loads registered data sets instead of only finding them. `binds` also tries whether the
        gateway's port is free.
        """
        super().__init__(loaded, registry)
        self._load_datasets, self._binds = load_datasets, binds
        unknown = unknown_variables(os.environ, named_variables(configs.dump(self._run)))
        self.notes: list[str] = [*loaded.notes, *unknown]
        self.task_sets: dict[str, Sequence[Task]] = {}
        """Tasks that `tasks` has read, by `data.train`, `data.eval` or `data.eval.NAME`."""
        data = self._run.data
        self.scorers = ScorerTable(
            registry,
            self._run.scorers,
            default=data.default_scorer,
            base_dir=loaded.base_dir,
            where=loaded.where,
            allow_code=data.allow_code,
        )

    def all(self) -> Iterator[str]:
        """Run every check except `workflow`."""
        yield from self.modules()
        yield from self.modes()
        yield from self.model()
        yield from self.components()
        yield from self.tools()
        yield from self.defined_scorers()
        yield from self.tasks()

    def serving(self) -> Iterator[str]:
        """Run the checks of `agentrl serve`, which needs neither tasks nor scorers nor the agent."""
        yield from self.imports()
        yield from self.modes()
        yield from self.of_kinds("engines", "stores", "tool_parsers", "contexts")

    def sampling(self) -> Iterator[str]:
        """Run the checks of `agentrl sample`, except `workflow`; it needs neither the model nor the loss."""
        yield from self.modules()
        yield from self.modes()
        yield from self.of_kinds("stores", "tools", "tool_middleware")
        yield from self.tools()
        yield from self.defined_scorers()
        yield from self.tasks()

    def modules(self) -> Iterator[str]:
        """Import the modules that may register components: the config's modules, and the module of an inline agent."""
        yield from self.imports()
        workflow = self._run.workflow
        if workflow is not None and self._run.rollout.agent.mode == "inline" and is_reference(workflow.use):
            with contextlib.suppress(PluginError):  # reported where the agent is resolved
                self._registry.find("workflows", workflow.use, base_dir=self._loaded.base_dir)

    def modes(self) -> Iterator[str]:
        """Yield options that are valid by themselves but not in this version or this combination."""
        where, run = self._loaded.where, self._run
        if run.launcher.use != "local":
            yield (
                f"{where('launcher')}: expected local, found {run.launcher.use}: all processes of a run are on this "
                "machine, and no package can bring another launcher so far; leave it out"
            )
        if run.sampling.temperature == 0:
            yield f"{where('sampling.temperature')}: 0 never explores; expected more than 0, for example 1.0"
        yield from self._sampling()
        agent = run.rollout.agent
        if agent.mode != "subproc":
            for name in ("python", "env", "subproc_max_memory_mb"):
                if getattr(agent, name):
                    yield f"{where(f'rollout.agent.{name}')}: only for rollout.agent.mode subproc, found {agent.mode}"
        yield from self._admission()
        if self._binds and run.gateway.port:
            yield from (f"{where('gateway.port')}: {text}" for text in problems_of(self._bind))
        yield from self._groups()

    def tools(self) -> Iterator[str]:
        """Yield tool servers with one name, and tools that no agent would get."""
        tools, where = self._run.tools, self._loaded.where
        with contextlib.suppress(UsageError):  # `components` reports wrong options
            yield from name_clashes(tools.servers, where)
        if tools.middleware and not tools.servers:
            yield f"{where('tools.middleware')}: there are no tools without tools.servers; add one, or leave it out"
        if tools.servers and self._run.rollout.agent.mode == "online":
            yield (
                f"{where('tools.servers')}: only for agents that the run starts itself, found rollout.agent.mode: "
                "online; leave them out"
            )

    def _sampling(self) -> Iterator[str]:
        """Yield sampling options that contradict each other."""
        where, sampling = self._loaded.where("sampling.min_tokens"), self._run.sampling
        if sampling.min_tokens and sampling.stop:
            yield f"{where}: sampling.stop could end a reply before {sampling.min_tokens} tokens; leave one of them out"
        if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
            yield f"{where}: expected at most sampling.max_tokens, {sampling.max_tokens}, found {sampling.min_tokens}"

    def _bind(self) -> None:
        """Raise `ConfigError` if the gateway's port is not free now."""
        from agentrl_core.gateway.serving.server import bind

        try:
            bind(self._run.gateway.host, self._run.gateway.port).close()
        except RunError as error:
            raise ConfigError(str(error).removeprefix("gateway: ")) from error

    def _groups(self) -> Iterator[str]:
        """Yield options of groups and steps that have no effect as they are set."""
        where, rollout = self._loaded.where, self._run.rollout
        if not self._run.trainer.steps and not any(key.startswith("data.eval") for key in self._run.data.sources):
            yield f"{where('trainer.steps')}: 0 only evaluates; set the tasks for that: `data: {{eval: heldout.jsonl}}`"
        if rollout.dynamic_sampling and not self._run.filters:
            yield (
                f"{where('rollout.dynamic_sampling')}: replaces groups that `filters` drop, but there are no filters; "
                "expected, for example, filters: [zero_variance]"
            )
        if rollout.agent.export_style != "individual" and self._run.loss.options.get("unit") != "sequence":
            self.notes.append(
                f"{where('rollout.agent.export_style')}: has no effect without loss.unit: sequence; in both styles "
                "every sampled token is trained once, with the advantage of its own call"
            )

    def _admission(self) -> Iterator[str]:
        """Check the gateway's admin key, and that no other machine can reach a gateway without one."""
        where, gateway = self._loaded.where, self._run.gateway
        yield from (
            f"{where('gateway.admin_key_env')}: {text}"
            for text in problems_of(lambda: key_from_environment(gateway.admin_key_env))
        )
        self._note_keys()
        if problem := exposed(gateway.host, gateway.admin_key_env):
            yield f"{where('gateway.host')}: {problem}"

    def _note_keys(self) -> None:
        for name, upstream in self._run.gateway.upstreams.items():
            if upstream.api_key_env is not None and not os.environ.get(upstream.api_key_env):
                where = self._loaded.where(f"gateway.upstreams.{name}.api_key_env")
                self.notes.append(f"{where}: the environment variable {upstream.api_key_env} is not set")

    def _chat(self, folder: Path) -> Chat:
        if self._run.gateway.tool_parser != AUTO:  # `components` checks it
            return super()._chat(folder)
        return Chat.from_directory(folder, registry=self._registry)

    def workflow(self) -> Iterator[str]:
        """Build the agent, and end its worker processes again."""
        if self._run.rollout.agent.mode == "online":
            if self._run.workflow is not None:
                yield f"{self._loaded.where('workflow')}: {ONLINE_WORKFLOW}"
            return
        if self._run.workflow is None:
            yield f"{self._loaded.where('workflow')}: {NO_WORKFLOW}"
            return
        component = self._run.workflow
        yield from problems_of(lambda: resolve_agent(self._loaded, self._registry, component).close_now())

    def tasks(self) -> Iterator[str]:
        """Read the task files, and check that each task has a scorer that can score it."""
        data = self._run.data
        if data.train is None and self._run.rollout.agent.mode != "online":
            yield f"{self._loaded.where('data.train')}: {NO_TASKS}"
        for key, source in data.sources.items():
            try:
                tasks = self.read_tasks(key, source)
            except UsageError as error:
                yield str(error)
            else:
                self.task_sets[key] = tasks
                yield from self._scorers(source.use, tasks)
                if key == "data.train":
                    yield from self._order(source.use, tasks)

    def read_tasks(self, key: str, source: Component) -> Sequence[Task]:
        """Read a task file or a registered data set; without `load_datasets` only check the data set's options."""
        path = self._file(source.use)
        if path.is_file():
            for option in source.options:
                raise ConfigError(f"{self._loaded.where(f'{key}.{option}')}: a task file has no options; leave it out")
            return load_tasks(path)
        if path.is_dir():
            raise DataError(f"{self._loaded.where(key)}: {path} is a folder; expected a .jsonl file of tasks")
        if source.use.endswith((".jsonl", ".json")):
            raise DataError(f"{self._loaded.where(key)}: no such task file: {path}")
        if not self._load_datasets:
            self._component("datasets", key, source)
            return ()
        loader: Callable[[], Sequence[Task]] = self.built.build("datasets", key, source)
        return loader()

    def _file(self, written: str) -> Path:
        """Return the path of a task file, as short as messages show it."""
        return Path(near(self._loaded.base_dir / Path(written).expanduser()))

    def _order(self, source: str, tasks: Sequence[Task]) -> Iterator[str]:
        """Yield a line for the first task that `rollout.order` cannot rank."""
        for order in self.built.of("group_orders"):
            if found := unrankable(order, tasks):
                yield f"{self._task_place(source, found[0])}: {found[1]}"

    def _scorers(self, source: str, tasks: Sequence[Task]) -> Iterator[str]:
        """Yield a line for each scorer that is missing or refuses tasks of a file, with the first such task."""
        by_scorer: dict[str | None, list[Task]] = {}
        for task in tasks:
            by_scorer.setdefault(task.scorer, []).append(task)
        for name, its_tasks in by_scorer.items():
            try:
                scorer = self.scorers.of_task(its_tasks[0])
            except UsageError as error:
                if name is None:
                    yield from self._without_default(source, len(its_tasks), error)
                elif name not in self._run.scorers:  # `defined_scorers` reports those that the config defines
                    yield f"{self._task_place(source, its_tasks[0])}: {error}"
                continue
            refused = [(task, problem) for task in its_tasks if (problem := scorer.refuses(task))]
            if refused:
                task, problem = refused[0]
                more = f" (and {len(refused) - 1} more tasks like it)" if len(refused) > 1 else ""
                text = f"{self._task_place(source, task)}: {problem}{more}"
                if name is None and not self._leaves_scoring:
                    self.notes.append(f"{text}: the workflow must return {'its' if not more else 'their'} reward")
                else:
                    yield text

    def _task_place(self, source: str, task: Task) -> str:
        """Return the place of a task for messages, with the line if it is from a file."""
        path = self._file(source)
        line = line_of(path, task.id) if path.is_file() else None
        return f"{source}: task '{task.id}'" if line is None else f"{path}:{line}: task '{task.id}'"

    def _without_default(self, source: str, count: int, error: UsageError) -> Iterator[str]:
        """Report tasks that name no scorer where the built-in default scorer is missing.

        This is an error only if the workflow never returns rewards; otherwise it is a note.
        """
        if self._run.data.default_scorer is not None:  # `defined_scorers` reports it
            return
        default = default_scorer()
        # Who has no judge installed is not told of one.
        missing = f"no scorer named '{default}'" in str(error)
        unusable = "" if missing else f" (the default one, '{default}', cannot be used: {error})"
        found, fix = f"{source}: {count} tasks name no scorer{unusable}", f"{NO_SCORER[0].lower()}{NO_SCORER[1:]}"
        if self._leaves_scoring:
            yield f"{found}: {fix}"
        else:
            online = self._run.rollout.agent.mode == "online"
            must = "their agents must send" if online else "the workflow must return their"
            self.notes.append(f"{found}: {must} rewards, or {fix}")

    @functools.cached_property
    def _leaves_scoring(self) -> bool:
        """True if the config's workflow is known to return no reward."""
        workflow = self._run.workflow
        if workflow is None or is_reference(workflow.use):
            # Whether a user's own workflow returns rewards is known only when it runs.
            return False
        try:
            target = self._load("workflows", workflow.use, self._loaded.where("workflow"))
        except PluginError:  # reported where the agent is resolved
            return False
        return getattr(target, "leaves_scoring", False) and workflow.options.get("reward_fn") is None

    def _load(self, kind: str, name: str, where: str) -> Any:
        return self._registry.load(kind, name, base_dir=self._loaded.base_dir, where=where)

    def _loss(self) -> Iterator[str]:
        """Build the loss, and the advantage that the loss or the config chooses."""
        yield from super()._loss()
        chosen = self._run.advantage
        try:
            advantage = settled(self._loaded, self._registry).advantage
        except UsageError as error:
            # The same error may have been reported by `super()._loss()`; the callers drop duplicates.
            yield str(error)
            advantage = chosen
        if advantage.use != AUTO:
            where, loss = self._loaded.where("loss"), self._run.loss.use
            asks = f"{where}: '{loss}': its `advantage_default` names {advantage.use}: "
            for problem in problems_of(lambda: self._build_advantage(advantage)):
                yield asks + problem if chosen.use == AUTO else problem

    def _build_advantage(self, chosen: Component) -> None:
        built = self.built.build("advantages", "advantage", chosen)
        for index, item in enumerate(self._run.filters):
            if names_core(item.use, "zero_variance") and getattr(built, "compares_groups", False):
                self.notes.append(
                    f"{self._loaded.where(f'filters.{index}')}: drops groups in which every record got 0, although "
                    f"advantage '{chosen.use}' compares groups with each other; `filters: []` keeps them"
                )

    def defined_scorers(self) -> Iterator[str]:
        """Build the scorers that the config defines, and the one that `data.default_scorer` names."""
        yield from self.scorers.problems()
        name = self._run.data.default_scorer
        if name is not None and name not in self._run.scorers:
            where = self._loaded.where("data.default_scorer")
            for problem in problems_of(lambda: self.scorers.get(name)):
                yield f"{where}: {problem}"


def resolve_agent(
    loaded: LoadedConfig[RunConfig],
    registry: Registry,
    chosen: object,
    workflow_options: Mapping[str, Any] | None = None,
) -> EpisodeSource:
    """Find and build the agent, in this process or in workers.

    With `rollout.agent.mode: subproc` the worker processes have started when this returns; the caller ends them.
    """
    where, config = loaded.places("workflow"), loaded.run
    for kind, component in (("stores", config.store), *(("tools", server) for server in config.tools.servers)):
        with contextlib.suppress(PluginError):  # reported by the check of the component
            withhold_secrets(kind, component, registry, loaded.base_dir)
    if config.rollout.agent.mode != "subproc":
        return resolve_workflow(
            chosen, registry=registry, base_dir=loaded.base_dir, where=where, options=workflow_options, run=config
        )
    # Keep the admin key out of the environment of the processes that start from now on: agents must not have it.
    withhold(config.gateway.admin_key_env)
    return resolve_in_workers(
        with_options(chosen, workflow_options or {}, where=where),
        registry=registry,
        base_dir=loaded.base_dir,
        where=where,
        rollout=config.rollout,
        agent_where=loaded.places("rollout.agent"),
        block=config.plugins.block,
    )
