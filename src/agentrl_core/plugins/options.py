"""Build a component from its config options, checked against the types of its constructor's parameters."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias, cast

from agentrl_core.config.foreign_hints import counterpart
from agentrl_core.config.nearest import did_you_mean
from agentrl_core.errors import ConfigError

Where: TypeAlias = str | Callable[[str], str]
"""Place of a component in messages: a fixed text (`loss`, `config.yaml:9: loss`), or a function that returns
the place of an option (`config.yaml:10: loss.clip`), and of the component itself for the name ""."""

_ANY = inspect.Parameter.empty


def construct(
    target: object, options: Mapping[str, Any], *, name: str, where: Where, injected: Mapping[str, Any]
) -> Any:
    """Build `target` with `options`, and with those of `injected` that it takes; an option wins over an injected value.

    A class is constructed. A function's keyword-only parameters are its options, and it is returned with them bound.
    Any other object is returned as it is and takes no options. Raises `ConfigError` for an unknown, missing or wrongly
    typed option, and for a value that the constructor refuses.
    """
    values = bind(target, options, name=name, where=where, injected=injected)
    if inspect.isclass(target):
        return _call(target, values, options, name, where)
    return functools.partial(cast("Callable[..., Any]", target), **values) if values else target


def bind(
    target: object, options: Mapping[str, Any], *, name: str, where: Where, injected: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments with which `construct` builds `target`; raises the `ConfigError`s that need no building.

    A class may have a class method `check_options(**arguments)`, which raises `ValueError` for options that do not fit
    together, so that `agentrl config check` finds them without building anything.
    """
    if not (inspect.isclass(target) or inspect.isroutine(target) or isinstance(target, functools.partial)):
        if options:
            option = next(iter(options))
            raise ConfigError(f"{place(where, option)}: {name} is an object, not a class: it takes no options")
        return {}
    named, open_ended = parameters_of(target)
    # A function's positional parameters are its arguments (a task, a group), not options.
    # Those of a class, or of a class method that builds one, are.
    builds = inspect.isclass(target) or inspect.isclass(getattr(target, "__self__", None))
    own = {key: item for key, item in named.items() if builds or item.kind is item.KEYWORD_ONLY}
    unknown = [key for key in options if key not in own and (key in named or not open_ended)]
    if unknown:
        hint = counterpart(unknown[0]) or _near_option(unknown[0], own.keys() - injected.keys())
        raise ConfigError(f"{place(where, unknown[0])}: unknown option of {name}{hint}")
    values = {key: item for key, item in injected.items() if open_ended or key in named}
    for key, value in options.items():
        values[key] = _checked(value, _type_of(target, own[key]), where, key) if key in own else value
    for key, parameter in own.items():
        if parameter.default is parameter.empty and key not in values:
            kind = _type_of(target, parameter)
            expected = "" if kind is _ANY else f", {_named(kind)}"
            raise ConfigError(f"{place(where)}: {name} needs the option '{key}'{expected}")
    check = getattr(target, "check_options", None) if inspect.isclass(target) else None
    if check is not None:
        try:
            check(**values)
        except ValueError as error:
            raise _refused(error, options, name, where) from error
    return values


def parameters_of(target: Any) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return the parameters that can be given by name, and whether any other name is accepted."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        # A type written in C whose signature cannot be read.
        return {}, True
    named = {item.name: item for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)}
    return named, any(item.kind is item.VAR_KEYWORD for item in parameters)


def place(where: Where, option: str = "") -> str:
    """Return the beginning of a message about an option of the component at `where`, or about the component."""
    if callable(where):
        return where(option)
    return f"{where}.{option}" if option else where


def _call(target: type, values: Mapping[str, Any], options: Mapping[str, Any], name: str, where: Where) -> Any:
    """Construct; turn the constructor's ValueError or TypeError into a `ConfigError`."""
    try:
        return target(**values)
    except (ValueError, TypeError) as error:
        raise _refused(error, options, name, where) from error


def _refused(error: Exception, options: Mapping[str, Any], name: str, where: Where) -> ConfigError:
    """Return the error for options that a constructor refuses; `where` is that of the option it quotes first."""
    # attrs' validators raise with the attribute and the value as further arguments, and quote its name first.
    text = str(error.args[0] if error.args else error)
    quoted = text.split("'")[1] if text.startswith("'") else ""
    return ConfigError(f"{place(where, quoted if quoted in options else '')}: {name}: {text}")


def _near_option(option: str, known: Collection[str]) -> str:
    if not known:
        return ", which has none"
    return did_you_mean(option, known) or f"; its options are {', '.join(sorted(known))}"


def _type_of(target: Any, parameter: inspect.Parameter) -> Any:
    """Return the type of a parameter; `_ANY` if it has none, or one that exists only for type checkers."""
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        return typing.get_type_hints(holder, globalns=_namespace(target, parameter.name))[parameter.name]
    except NameError:
        return _ANY


def _namespace(target: Any, name: str) -> dict[str, Any]:
    """Return the globals of the module in which the annotation of `target`'s parameter `name` was written."""
    if not inspect.isclass(target):
        return dict(getattr(inspect.unwrap(getattr(target, "func", target)), "__globals__", {}))
    # attrs drops the underscore of a private field in its parameter's name.
    names = {name, f"_{name}"}
    owners = (base for base in target.__mro__ if names & inspect.get_annotations(base).keys())
    # Without such a field the constructor has the annotation, perhaps that of a base class in another module.
    constructor = next(base for base in target.__mro__ if "__init__" in vars(base))
    return vars(sys.modules[next(owners, constructor).__module__])


def _checked(value: Any, kind: Any, where: Where, option: str) -> Any:
    """Return the value of an option as a `kind`, see `conversion.convert`."""
    if kind in (_ANY, Any, object) or (inspect.isclass(kind) and type(value) is kind):
        return value
    from agentrl_core.config.conversion import convert  # imports cattrs, which most commands do without

    return convert(value, kind, lambda path: place(where, f"{option}.{path}" if path else option))


def _named(kind: Any) -> str:
    from agentrl_core.config.conversion import type_name

    return type_name(kind)
