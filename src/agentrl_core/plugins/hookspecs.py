"""The hooks by which a plugin package follows a run or adapts agents, each with an example that runs.

A package names a light module under the entry-point group `agentrl`. Functions in it that carry `@hookimpl` and the
name of a hook below are called. An implementation may take fewer arguments than its hook, never others. All hooks are
synchronous and must be cheap: heavy or waiting code belongs in the objects that they register. They are called package
by package, in the reverse order of the packages' names; `@hookimpl(tryfirst=True)` and `trylast` move one forward or
back.

The hooks that register components are in `kinds.py`. A package with a single component needs no hook: it declares the
component under the entry-point group of its kind, for example `[project.entry-points."agentrl.scorers"]`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pluggy

from agentrl_core.plugins.discovery import GROUP

if TYPE_CHECKING:
    from agentrl_core.api.tools import EpisodeTools
    from agentrl_core.api.trackers import RunInfo, RunSummary, StepReport
    from agentrl_core.api.workflow import Workflow
    from agentrl_core.config.schema import RunConfig
    from agentrl_core.types import Record

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)

T_contra = TypeVar("T_contra", contravariant=True)


class Register(Protocol[T_contra]):
    """Callable that a `register_…` hook receives: one call adds one component under the calling package's name."""

    def __call__(self, name: str, obj: T_contra | str, *, summary: str = "") -> None:
        """Register `obj`, or a "module:attr" string that is imported on use, under `name` (`[a-z0-9][a-z0-9_-]*`).

        `summary` is one line for `agentrl plugins list`. Raises `PluginError` on a name or string of another form.
        """
        ...


@hookspec
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
    its module is in `sys.modules` already. Packages are asked in the order of all hooks, and the first result that is
    not None is used. Added in 0.1.

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
def serve_tools(tools: EpisodeTools, host: str, port: int | None) -> Coroutine[Any, Any, None] | None:
    """Serve tools to other programs, for `agentrl tools serve`; None if you do not.

    The coroutine that you return serves `tools` until it is cancelled: over standard input and output if `port` is
    None, else over HTTP at this port (0: any free one). Packages are asked in the order of all hooks, and the first
    result that is not None is used. Added in 0.1.

        from agentrl_core import hookimpl

        @hookimpl
        def serve_tools(tools, host, port):
            if port is None:
                return None
            from agentrl_rest.server import serve

            return serve(tools, host, port)
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
