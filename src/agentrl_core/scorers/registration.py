"""`register_scorer`: registers a scorer from a script or module, without a plugin package."""

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
    """Register a scorer under a name that tasks, `data.default_scorer` and the config's `scorers` may use.

        @register_scorer("close_enough")
        async def close_enough(model_answer: str, ground_truth: str) -> float:
            return float(model_answer[:3] == ground_truth[:3])

    Accepts every form of scorer, including `(model_answer, ground_truth)` of AgentCPM's AgentRL, and returns it. Call
    this before the run starts: in the script that trains, or in a module that the config lists in `plugins.modules`;
    in mode inline also in the agent's module. Scorers are called in the run's process, independent of where the agents
    run, so any function works, also a lambda. With `cpu_bound` the scorer is called in a new process for up to
    `timeout_s` seconds, and it must be importable there.

    Raises `PluginError` if `function` is not a scorer, if it cannot be sent to that process, or if another function of
    this program has the name; `replace` drops the other function. If a package has a scorer of the same name, the bare
    name is ambiguous, and `python/NAME` means this one.
    """
    if function is None:
        return lambda decorated: register_scorer(
            name, decorated, cpu_bound=cpu_bound, timeout_s=timeout_s, replace=replace
        )
    declared: dict[str, Any] = {"cpu_bound": True} if cpu_bound else {}
    if timeout_s is not None:
        declared["timeout_s"] = timeout_s
    with _declaring(function, declared):
        # A class is checked later, when it is built with its options.
        if not isinstance(function, type):
            normalize_scorer(function, name)
        _register(name, function, replace=replace)
    return function


@contextmanager
def _declaring(function: Any, declared: Mapping[str, Any]) -> Iterator[None]:
    """Set attributes of a scorer; restore the former ones if the block raises PluginError.

    Builtin functions and bound methods have no room for attributes: `PluginError`.
    """
    before = {name: getattr(function, name) for name in declared if hasattr(function, name)}
    for name, value in declared.items():
        try:
            setattr(function, name, value)
        except (AttributeError, TypeError) as error:
            raise PluginError(
                f"scorer {function!r} cannot be registered with {name}={value!r}, because it takes no attributes; "
                "register a function of yours that calls it"
            ) from error
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
    # The same function may be registered again, when its module is imported a second time. All lambdas have one path,
    # so for them the path does not tell whether the function is the same.
    old = next((item for item in PROGRAM.entries if (item.kind, item.name) == ("scorers", name)), None)
    if old and not replace and (old.path != entry.path or entry.path.endswith("<lambda>")):
        raise PluginError(
            f"scorer '{name}' is registered already, as {old.path}; give {entry.path} another name, or pass "
            "replace=True"
        )
    PROGRAM.entries[:] = [*(item for item in PROGRAM.entries if item is not old), entry]
