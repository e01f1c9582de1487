"""Registering scorers from Python, without a package."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, overload

from agentrl_core.errors import PluginError
from agentrl_core.plugins.manager import registrar
from agentrl_core.plugins.registry import PROGRAM, Package
from agentrl_core.scorers.call import normalize_scorer

ScorerT = TypeVar("ScorerT", bound=Callable[..., Any])


@overload
def register_scorer(
    name: str, function: ScorerT, *, cpu_bound: bool = ..., timeout_s: float | None = ..., replace: bool = ...
) -> ScorerT: ...


@overload
def register_scorer(
    name: str, *, cpu_bound: bool = ..., timeout_s: float | None = ..., replace: bool = ...
) -> Callable[[ScorerT], ScorerT]: ...


def register_scorer(
    name: str,
    function: Callable[..., Any] | None = None,
    *,
    cpu_bound: bool = False,
    timeout_s: float | None = None,
    replace: bool = False,
) -> Any:
    """Make a scorer known under a name that tasks, `data.default_scorer` and the config's `scorers` may use.

        @register_scorer("close_enough")
        async def close_enough(model_answer: str, ground_truth: str) -> float:
            return float(model_answer[:3] == ground_truth[:3])

    Takes every form of scorer, AgentRL's `(model_answer, ground_truth)` among them, and returns it. Call it before
    the run starts: in the script that trains, or in a module that the config names in `plugins.modules`; with mode
    inline the agent's own module will do. Scorers are called in the run's process, wherever the agents run, so any
    function will do, lambdas too. `cpu_bound` calls it in a process of its own for up to `timeout_s` seconds: then it
    must be importable there.

    Raises `PluginError` where `function` is no scorer, cannot be sent to the process where it is to run, or the name
    is taken by another function of this program; `replace` lets it go. A package's scorer of the same name makes the
    bare name ambiguous: `python/NAME` is this one.
    """
    if function is None:
        return lambda decorated: register_scorer(
            name, decorated, cpu_bound=cpu_bound, timeout_s=timeout_s, replace=replace
        )
    declared: dict[str, Any] = {"cpu_bound": True} if cpu_bound else {}
    if timeout_s is not None:
        declared["timeout_s"] = timeout_s
    with _declaring(function, declared):
        if not isinstance(function, type):  # a class is built with its options, and looked at then
            normalize_scorer(function, name)
        _register(name, function, replace=replace)
    return function


@contextmanager
def _declaring(function: Any, declared: Mapping[str, Any]) -> Iterator[None]:
    """Set attributes of a scorer, and take them away where the block fails."""
    before = {name: getattr(function, name) for name in declared if hasattr(function, name)}
    for name, value in declared.items():
        setattr(function, name, value)
    try:
        yield
    except PluginError:
        for name in declared:
            if name in before:
                setattr(function, name, before[name])
            else:
                delattr(function, name)
        raise


def _register(name: str, function: Callable[..., Any], *, replace: bool) -> None:
    new = Package(distribution=PROGRAM.distribution, version="")
    registrar(new, "scorers")(name, function)
    entry = new.entries[0]
    old = next((item for item in PROGRAM.entries if (item.kind, item.name) == ("scorers", name)), None)
    if old and not replace and (old.path != entry.path or entry.path.endswith("<lambda>")):
        raise PluginError(
            f"scorer '{name}' is registered already, as {old.path}; give {entry.path} another name, or say replace=True"
        )
    PROGRAM.entries[:] = [*(item for item in PROGRAM.entries if item is not old), entry]
