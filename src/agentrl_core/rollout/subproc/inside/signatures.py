"""Tell which functions and objects are workflows, and which of an episode's arguments they accept."""

from __future__ import annotations

import functools
import inspect
from typing import Any

INJECTED = ("base_url", "api_key", "http_client", "record_id", "is_eval")
"""Keyword arguments that an episode offers; a workflow gets those that its signature accepts."""
_NAMED = "tools"
"""Argument that a workflow gets if it has a parameter of this name and the config lists tools; `**kwargs` do not get
it, because workflows pass them on."""

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class SignatureError(Exception):
    """A function cannot be called as a workflow; the message names it and says why."""


def is_function(found: Any) -> bool:
    """Return whether an object is a function, a method or a partial of one."""
    return inspect.isroutine(found) or isinstance(found, functools.partial)


def is_async(function: Any) -> bool:
    """Return whether a function, or an object's `__call__`, is a coroutine function."""
    call = getattr(type(function), "__call__", None)  # noqa: B004  (reads `__call__`, does not test for it)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def is_workflow_function(found: Any) -> bool:
    """Return whether `found` is a function of a task; one without parameters makes an agent instead."""
    if not is_function(found):
        return False
    try:
        return inspect.iscoroutinefunction(found) or _takes_data(inspect.signature(found))
    except (TypeError, ValueError):
        return False


def runs_on_data(agent: Any) -> bool:
    """Return whether `agent.run` takes `data`: frameworks have a `run` too, with a prompt or a query in its place."""
    run = getattr(agent, "run", agent)
    if not callable(run) or inspect.isclass(run):
        return False
    try:
        return next(iter(inspect.signature(run).parameters), None) == "data"
    except (TypeError, ValueError):
        # A signature that cannot be read is that of C code, so no workflow of a user.
        return False


def read_signature(function: Any, name: str) -> inspect.Signature:
    """Return the signature of a function; `SignatureError` if it has none that can be read."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise SignatureError(f"the signature of {name} cannot be read ({error}); wrap it in a function") from None


def accepted_arguments(function: Any, name: str) -> frozenset[str]:
    """Return the injected arguments that a workflow accepts.

    Raises `SignatureError` if it cannot be called with a task's data and these.
    """
    signature = read_signature(function, name)
    if not _takes_data(signature):
        raise SignatureError(
            f"{name}{signature} has no parameter for the task; expected run(data) or "
            f"run(data, *, {', '.join(INJECTED)}), where each keyword is optional"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise SignatureError(f"{name}{signature} yields; expected a function that returns the reward")
    parameters = signature.parameters.values()
    accepted = frozenset(INJECTED)
    named = {item.name for item in parameters if item.kind in _BY_NAME}
    if not any(item.kind is item.VAR_KEYWORD for item in parameters):
        accepted &= named
    accepted |= {_NAMED} & named
    try:
        # A dry run: a parameter that no episode gives is refused before anything starts.
        signature.bind({}, **dict.fromkeys(accepted))
    except TypeError as error:
        raise SignatureError(
            f"{name}{signature} cannot be called with (data, {', '.join(INJECTED)}): {error}; "
            "give the other parameters a default, or set them as options of the workflow"
        ) from None
    return accepted


def takes_by_name(function: Any, name: str) -> bool:
    """Return whether a function has a parameter of this name."""
    return any(item.name == name and item.kind in _BY_NAME for item in inspect.signature(function).parameters.values())


def _takes_data(signature: inspect.Signature) -> bool:
    """Return whether the first parameter must be given by position, as a task's data is."""
    first = next(iter(signature.parameters.values()), None)
    if first is None:
        return False
    return first.kind is first.VAR_POSITIONAL or (first.kind in _BY_POSITION and first.default is first.empty)
