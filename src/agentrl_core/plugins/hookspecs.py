"""The hooks that a plugin package may implement, each with an example that runs.

A package names a light module under the entry-point group `agentrl`. Functions in it that carry `@hookimpl` and the
name of a hook below are called. An implementation may take fewer arguments than its hook, never others. All hooks are
synchronous and must be cheap: heavy or waiting code belongs in the objects that they register.

A package with a single component needs no hook: it declares the component under the entry-point group of its kind, for
example `[project.entry-points."agentrl.scorers"]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pluggy

if TYPE_CHECKING:
    from agentrl_core.api.engines import Engine
    from agentrl_core.api.losses import Correction, LossCalculator
    from agentrl_core.api.stores import Store
    from agentrl_core.api.trackers import RunInfo, RunSummary, StepReport, Tracker
    from agentrl_core.api.workflow import Workflow
    from agentrl_core.config.schema import RunConfig
    from agentrl_core.types import Record, Task

PROJECT = "agentrl"
"""pluggy's project name, and the entry-point group of hook modules."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

T_contra = TypeVar("T_contra", contravariant=True)


class Register(Protocol[T_contra]):
    """Callable that a `register_…` hook receives: one call adds one component under the calling package's name."""

    def __call__(self, name: str, obj: T_contra | str, *, summary: str = "") -> None:
        """Register `obj`, or a "module:attr" string that is imported on use, under `name` (`[a-z0-9][a-z0-9_-]*`).

        `summary` is one line for `agentrl plugins list`. Raises `PluginError` on a name or string of another form.
        """
        ...


@hookspec
def register_workflows(register: Register[Callable[..., Any]]) -> None:
    """Register workflows: agents that run one episode on one task.

    A class is built with the config's options; a plain function is the workflow itself, and its keyword-only
    parameters are its options. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_workflows(register):
            register("math_agent", "agentrl_qa.agent:MathAgent", summary="solves word problems in one turn")
    """


@hookspec
def register_scorers(register: Register[Callable[..., Any]]) -> None:
    """Register scorers: callables that score one finished episode.

    A task names its scorer in the field `scorer`. Two packages may use one name; a task with the bare name is then
    refused, and must say `distribution/name`. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_scorers(register):
            register("rouge", "agentrl_qa.rouge:score", summary="overlap of n-grams in [0, 1]")
    """


@hookspec
def register_losses(register: Register[Callable[..., LossCalculator]]) -> None:
    """Register loss calculators: policy-gradient surrogates, chosen by `loss: {use: NAME}`.

    The options of the section are the constructor's arguments. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_losses(register):
            register("dr_grpo", "agentrl_drgrpo.loss:DrGRPO", summary="GRPO without length or std normalization")
    """


@hookspec
def register_corrections(register: Register[Callable[..., Correction]]) -> None:
    """Register corrections: wrappers of any loss, listed in `loss: {corrections: [{use: NAME, …}]}`.

    A correction is a factor on the loss's terms, a mask, or an added term; the first in the list is applied first.
    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_corrections(register):
            register("drop_first", "agentrl_tricks.corrections:DropFirst", summary="first tokens do not train")
    """


@hookspec
def register_advantages(register: Register[Callable[..., Any]]) -> None:
    """Register advantage estimators: one number per record of a group, chosen by `advantage: {use: NAME}`.

    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_advantages(register):
            register("median", "agentrl_robust.advantages:Median", summary="reward minus the group's median")
    """


@hookspec
def register_credits(register: Register[Callable[..., Any]]) -> None:
    """Register credit assignments: they share a record's reward among its interactions, `credit: {use: NAME}`.

    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_credits(register):
            register("last_turn", "agentrl_robust.credit:LastTurn", summary="everything to the last interaction")
    """


@hookspec
def register_shapings(register: Register[Callable[..., Any]]) -> None:
    """Register shapings: transformations of rewards before the baseline, in the order of the config's `shaping`.

    A shaping is a class with `shape(group, rewards)`, or a function of a group and its rewards with keyword-only
    options.

    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_shapings(register):
            register("per_token", "agentrl_robust.shaping:PerToken", summary="rewards by the number of tokens")
    """


@hookspec
def register_filters(register: Register[Callable[..., Any]]) -> None:
    """Register filters: rules that choose which groups are trained, in the order of the config's `filters`.

    A filter is a class with `keep(group, advantages)` and `reason`, or a function of a group with keyword-only
    options.

    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_filters(register):
            register("too_easy", "agentrl_robust.filters:TooEasy", summary="drops groups with a mean above a limit")
    """


@hookspec
def register_engines(register: Register[Callable[..., Engine]]) -> None:
    """Register inference engines: token ids in, token ids with logprobs out, chosen by `engine: {use: NAME}`.

    Built with those of `model_dir`, `seed` and `dtype` that the constructor takes, beside the config's options.
    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_engines(register):
            register("fleet", "agentrl_fleet.engine:FleetEngine", summary="many servers behind one router")
    """


@hookspec
def register_stores(register: Register[Callable[..., Store]]) -> None:
    """Register stores: storage of runs, records and interactions, chosen by `store: {use: NAME}`.

    Built with `path`, the run's database file, beside the config's options. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_stores(register):
            register("duck", "agentrl_duck.store:DuckStore", summary="one DuckDB file per run")
    """


@hookspec
def register_trackers(register: Register[Callable[..., Tracker]]) -> None:
    """Register trackers: receivers of a run's metrics, listed in the config's `trackers`.

    Built with `run_dir` beside the config's options. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_trackers(register):
            register("csv", "agentrl_csv:CsvTracker", summary="one row per step in metrics.csv")
    """


@hookspec
def register_tool_parsers(register: Register[Callable[..., Any]]) -> None:
    """Register tool-call parsers: they split a sampled reply's text into content and tool calls.

    Chosen by `gateway.tool_parser`, or by its method `recognise`; a parser implements
    `agentrl_core.api.tool_parsers.ToolParser`. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_tool_parsers(register):
            register("pythonic", "agentrl_pythonic:PythonicParser", summary="[name(argument=value)]")
    """


@hookspec
def register_models(register: Register[Callable[..., None]]) -> None:
    """Register model builders: functions that write a model with random weights, `model: {use: NAME}`.

    Called with `directory`, `seed` and `conversations` beside the config's options. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_models(register):
            register("mixture", "agentrl_moe.build:build", summary="a tiny mixture of experts")
    """


@hookspec
def register_datasets(register: Register[Callable[..., list[Task]]]) -> None:
    """Register data sets: callables that return tasks, named by `data.train` and `data.eval`.

    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_datasets(register):
            register("countdown", "agentrl_countdown:tasks", summary="reach a number with four others")
    """


@hookspec
def register_adapters(register: Register[Callable[..., Workflow]]) -> None:
    """Register adapters of agent frameworks, for `agentrl plugins list`; `adapt_agent` does the work.

    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_adapters(register):
            register("crew", "agentrl_crew.adapter:CrewWorkflow", summary="Crew objects and factories of them")
    """


@hookspec
def register_worker_adapters(register: Register[Any]) -> None:
    """Register adapters that run in another interpreter (`rollout.agent.python`), each as a "module:attr" string.

    The function is called there as `adapt(agent, options)`, and, if it has that parameter, with the keyword
    `factory`: a callable that makes another agent, or None. It returns an object with `run(data, …)`, or None if the
    agent is of another framework. The package is loaded there from its folder alone, so the module may import the
    standard library, the framework and its own package, never agentrl_core. If the module has a function
    `prepare()`, it is called before the agent's module is imported, for example to set variables that the framework
    reads. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_worker_adapters(register):
            register("crew", "agentrl_crew.worker:adapt", summary="Crew objects in their own interpreter")
    """


@hookspec
def register_commands(register: Register[Any]) -> None:
    """Register commands of the `agentrl` command line: a `typer.Typer`, or a function with typer's annotations.

    `agentrl --help` lists only commands that are declared under the entry-point group `agentrl.commands`; a command
    that is registered here runs as well. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def register_commands(register):
            register("leaderboard", "agentrl_board.cli:app", summary="compare runs")
    """


@hookspec(firstresult=True)
def adapt_agent(
    agent: object, options: Mapping[str, Any], factory: Callable[[], object] | None, base_dir: Path | None
) -> Workflow | None:
    """Turn a framework's agent object, or a factory of one, into a workflow; None if it is not yours.

    Called if the object that the config's `workflow` names has no `run(data)` of its own, in the main process and once
    in each worker of `mode: subproc`. `options` are the options that the agent's own class or factory did not take;
    `construct` checks them. `factory` is set if the config names a class or function: each call makes another agent,
    for frameworks whose agents serve one conversation only. Where the model's output ends an episode (too many turns),
    let `run` return None, so that the scorer decides; switch the framework's own retries off. Relative paths in options
    start from `base_dir`, the config's folder. Recognise the framework without importing it: its objects exist only if
    its module is in `sys.modules` already. The first result that is not None is used. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def adapt_agent(agent, options):
            if type(agent).__module__.partition(".")[0] != "crew":
                return None
            from agentrl_core.api.options import construct
            from agentrl_crew.adapter import CrewWorkflow

            return construct(CrewWorkflow, options, name="crew", where="workflow", injected={"agent": agent})
    """


@hookspec
def configure(config: RunConfig) -> None:
    """Check the parsed config before anything is built; raise `ConfigError` to stop the run.

    Added in 0.1.

        from agentrl_core import hookimpl
        from agentrl_core.errors import ConfigError

        @hookimpl
        def configure(config):
            if config.rollout.group_size > 64:
                raise ConfigError(f"rollout.group_size: at most 64 on this cluster, found {config.rollout.group_size}")
    """


@hookspec
def run_started(run: RunInfo) -> None:
    """Follow a run: called once, before its first episode.

    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def run_started(run):
            print(f"{run.name} writes to {run.directory}")
    """


@hookspec
def record_scored(run: RunInfo, record: Record) -> None:
    """Follow the records: called after each episode that ended with a reward.

    In evaluations too (`record.is_eval`). Called on the thread that runs the agents: slow code here stalls them.
    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def record_scored(run, record):
            print(f"{record.task_id}: {record.reward}")
    """


@hookspec
def step_finished(run: RunInfo, step: StepReport) -> None:
    """Follow the learner: called after each optimizer step.

    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def step_finished(run, step):
            print(f"{run.name} step {step.step}: {step.metrics['reward/mean']:.2f}")
    """


@hookspec
def weights_published(run: RunInfo, version: int) -> None:
    """Follow the policy: called when the engine samples from a new version.

    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def weights_published(run, version):
            print(f"{run.name} samples from version {version}")
    """


@hookspec
def run_finished(run: RunInfo, summary: RunSummary) -> None:
    """Follow a run to its end: called once, for failed and interrupted runs too.

    Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def run_finished(run, summary):
            print(f"{summary.name} {summary.status} after {summary.steps} steps")
    """
