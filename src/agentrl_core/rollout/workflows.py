"""Turn the config's `workflow` (a name, class, function, object or framework agent) into a checked callable.

Objects with `run(data, …)` or `arun_episode(engine, data)`, and functions of a task's data, are workflows as they are.
A class is built once with its options. A function without parameters, or a class without `run`, makes an agent. That
agent, like any other object, goes to the `adapt_agent` hook of the packages that know agent frameworks.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import attrs

from agentrl_core.api.workflow import RolloutWorkflow
from agentrl_core.config.component import Component
from agentrl_core.config.invocation import pip_install
from agentrl_core.errors import ConfigError, PluginError
from agentrl_core.plugins.catalog import of_another_interpreter, providers
from agentrl_core.plugins.options import bind, construct, place
from agentrl_core.rollout.ready_made.samplers import AsyncSampler, SamplerWorkflow
from agentrl_core.rollout.subproc.inside.signatures import INJECTED, is_function, is_workflow_function, runs_on_data
from agentrl_core.rollout.workflow_call import EngineCall, ResolvedWorkflow, WorkflowCall

if TYPE_CHECKING:
    from agentrl_core.config.schema import RunConfig
    from agentrl_core.plugins.options import Where
    from agentrl_core.plugins.registry import Registry

_EXAMPLE = "a class with `async def run(self, data, *, base_url, api_key, http_client)` that returns a reward"


def resolve_workflow(
    workflow: object,
    *,
    registry: Registry,
    base_dir: Path,
    where: Where = "workflow",
    options: Mapping[str, Any] | None = None,
    run: RunConfig | None = None,
    has_engine: bool = True,
) -> ResolvedWorkflow:
    """Find, build and check a workflow; of the user's code, only its constructor or factory runs.

    `workflow` is a component or its name (`pkg.mod.Agent`, `file.py:Agent`, a registered name), a class, an instance,
    whose state is kept, a function, or an agent of a framework. `options` are added to those of the component, and to
    those that a `RolloutWorkflow` takes from the `run`. With `has_engine=False`, as in worker processes, a workflow
    that calls the engine itself is refused.

    Raises `PluginError` if the workflow cannot be found or is not one, `ConfigError` for wrong options or a wrong
    signature.
    """
    if isinstance(workflow, str):
        workflow = Component(workflow)
    if isinstance(workflow, Component):
        found: Any = _load(workflow.use, registry, base_dir, where)
        name = registry.describe("workflows", workflow.use, base_dir=base_dir)
        use, options = workflow.use, {**workflow.options, **(options or {})}
    else:
        found, name, options = workflow, _qualified_name(workflow), options or {}
        use = name
    if is_workflow_function(found):
        call: WorkflowCall | EngineCall = WorkflowCall(
            _with_options(found, options, use, where), use, where=place(where)
        )
    else:
        if inspect.isclass(found) and issubclass(found, RolloutWorkflow):
            # Refused before it is built: its constructor may need things that only the run's process has.
            if not has_engine:
                raise _refusal_without_engine(name, where)
            if run is not None:
                here = functools.partial(place, where)
                options = found.complete_options(options, run=run, base_dir=base_dir, where=here)
        agent, options, factory = _built(found, options, use, where)
        call = _call_of(agent, options, use, registry, where, factory, base_dir)
        if isinstance(call, EngineCall) and not has_engine:
            raise _refusal_without_engine(name, where)
    return ResolvedWorkflow(name, call)


def _refusal_without_engine(name: str, where: Where) -> ConfigError:
    return ConfigError(
        f"{place(where)}: {name} calls the engine itself (arun_episode), which only the run's own process has; use "
        "rollout.agent.mode: inline"
    )


def with_options(workflow: object, options: Mapping[str, Any], *, where: Where = "workflow") -> object:
    """Return a workflow with further options as one object that can be sent to another process."""
    if not options:
        return workflow
    if isinstance(workflow, str):
        return Component(workflow, options)
    if isinstance(workflow, Component):
        return attrs.evolve(workflow, options={**workflow.options, **options})
    name = _qualified_name(workflow)
    if not (inspect.isclass(workflow) or is_function(workflow)):
        _refuse_options(options, name, where)
    bind(workflow, options, name=name, where=where, injected=dict.fromkeys(INJECTED))
    return functools.partial(cast("Callable[..., object]", workflow), **options)


def _load(use: str, registry: Registry, base_dir: Path, where: Where) -> Any:
    """Import the configured workflow; if its framework is missing, say that it may live in another interpreter."""
    try:
        return registry.load("workflows", use, base_dir=base_dir, where=where)
    except PluginError as error:
        missing = error.__cause__
        framework = (getattr(missing, "name", None) or "").partition(".")[0]
        if not isinstance(missing, ModuleNotFoundError) or framework not in of_another_interpreter():
            raise
        package = providers("frameworks")[framework]
        raise PluginError(
            f"{error}; {framework} needs an environment of its own: set rollout.agent.mode to subproc and "
            f"rollout.agent.python to the interpreter that has it, and {pip_install(package)} here"
        ) from missing


def _with_options(
    function: Callable[..., Any], options: Mapping[str, Any], use: str, where: Where
) -> Callable[..., Any]:
    """Bind the options of a workflow function: its keyword-only parameters, except those that each episode injects."""
    if not options:
        return function
    checked = construct(function, options, name=use, where=where, injected=dict.fromkeys(INJECTED))
    return functools.partial(function, **{option: checked.keywords[option] for option in options})


def _built(
    found: Any, options: Mapping[str, Any], use: str, where: Where
) -> tuple[object, Mapping[str, Any], Callable[[], object] | None]:
    """Return the built object, the options that its constructor did not take, and its factory (None for an object)."""
    if not (inspect.isclass(found) or is_function(found)):
        return found, options, None
    parameters = inspect.signature(found).parameters
    # A workflow class is given all options, so that one that it does not know is refused. Of the options of an agent's
    # class or factory, those that it does not take are left to the adapter.
    takes_all = any(callable(getattr(found, name, None)) for name in ("run", "arun_episode")) or any(
        item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values()
    )
    own = {key: value for key, value in options.items() if takes_all or key in parameters}
    construct_one = functools.partial(construct, found, own, name=use, where=where, injected={})
    factory = construct_one if inspect.isclass(found) else construct_one()
    return factory(), {key: value for key, value in options.items() if key not in own}, factory


def _call_of(
    agent: object,
    options: Mapping[str, Any],
    use: str,
    registry: Registry,
    where: Where,
    factory: Callable[[], object] | None,
    base_dir: Path | None,
) -> WorkflowCall | EngineCall:
    """Return the call of a workflow object, or of the workflow that an adapter makes of a framework's agent."""
    # Samplers keep the state of their episode on `self`, so the workflow needs the factory for one per episode.
    if isinstance(agent, AsyncSampler):
        agent = SamplerWorkflow(agent, factory)
    arun_episode = getattr(agent, "arun_episode", None)
    # An object with both methods runs by `run`, unless it is declared as a token-level workflow.
    if callable(arun_episode) and (isinstance(agent, RolloutWorkflow) or not callable(getattr(agent, "run", None))):
        _refuse_options(options, use, where)
        return EngineCall(arun_episode, f"{use}.arun_episode", where=place(where))
    if not runs_on_data(agent):
        adapted = registry.hooks.adapt_agent(agent=agent, options=options, factory=factory, base_dir=base_dir)
        if adapted is not None:
            return WorkflowCall(adapted.run, f"{_qualified_name(type(adapted))}.run", where=place(where))
    run = getattr(agent, "run", None)
    if callable(run):
        run_name = f"{use}.run"
    elif callable(agent) and not inspect.isclass(agent):
        run, run_name = agent, use
    else:
        raise PluginError(f"{place(where)}: {_not_a_workflow(agent, use)}")
    _refuse_options(options, use, where)
    return WorkflowCall(run, run_name, where=place(where))


def _refuse_options(options: Mapping[str, Any], use: str, where: Where) -> None:
    """Raise `ConfigError` if options are left that nothing takes."""
    if options:
        raise ConfigError(
            f"{place(where, next(iter(options)))}: {use} is an existing object and takes no options; "
            "name its class instead"
        )


def _not_a_workflow(agent: object, use: str) -> str:
    """Return the message that names the object's type, the package that may adapt it, and the form of a workflow."""
    modules = {base.__module__.partition(".")[0] for base in type(agent).__mro__}
    # All base classes count: a user's agent is often a subclass of the framework's class.
    adapters = providers("frameworks")
    packages = sorted({adapters[module] for module in modules if module in adapters})
    if packages:
        advice = f"{pip_install(*packages)} to train it as it is, or write {_EXAMPLE}"
    else:
        known = sorted(set(adapters.values()))
        advice = f"write {_EXAMPLE}; agents of a framework need its adapter package: {', '.join(known)}"
    return (
        f"'{use}' is of type {_qualified_name(type(agent))}, which has no `run(data)`, and no installed package "
        f"adapts it; {advice}"
    )


def _qualified_name(found: object) -> str:
    """Return `module.Name` of a class or function, or of an object's class."""
    holder = found if hasattr(found, "__qualname__") else type(found)
    return f"{holder.__module__}.{holder.__qualname__}"
