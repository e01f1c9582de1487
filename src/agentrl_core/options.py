"""Build a component from the options beside its name, checked against what its constructor takes."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from agentrl_core.errors import ConfigError
from agentrl_core.nearest import did_you_mean

if TYPE_CHECKING:
    from cattrs import Converter

Where: TypeAlias = str | Callable[[str], str]
"""Where a component stands in the config, for messages: its key (`loss`, `config.yaml:9: loss`), or a callable
from an option's name ("" for the component itself) to the like (`config.yaml:10: loss.clip`)."""

_ANY = inspect.Parameter.empty


def construct(
    target: object, options: Mapping[str, Any], *, name: str, where: Where, injected: Mapping[str, Any]
) -> Any:
    """Build `target` with `options`, and with those of `injected` that it takes; an option wins over both.

    A class is constructed; of a function the keyword-only parameters are the options, and it is returned with
    them bound. Any other object is returned as it is and takes no options. Raises `ConfigError` for an unknown,
    missing or wrongly typed option, and for a value that the constructor refuses.
    """
    if not (inspect.isclass(target) or inspect.isroutine(target) or isinstance(target, functools.partial)):
        if options:
            raise ConfigError(
                f"{place(where, next(iter(options)))}: {name} is an object, not a class: it takes no options"
            )
        return target
    parameters = inspect.signature(target).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    named = {
        key: item for key, item in parameters.items() if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)
    }
    known = (
        named
        if inspect.isclass(target)
        else {key: item for key, item in named.items() if item.kind is item.KEYWORD_ONLY}
    )
    values = {}
    for option, value in options.items():
        if option not in known and not (open_ended and option not in named):
            raise ConfigError(
                f"{place(where, option)}: unknown option of {name}{_hint(option, set(known) - set(injected))}"
            )
        hint = _hint_of(target, known[option]) if option in known else _ANY
        values[option] = _checked(value, hint, place(where, option))
    values = {key: item for key, item in injected.items() if open_ended or key in named} | values
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in values:
            raise ConfigError(f"{place(where)}: {name} needs the option '{key}'{_typed(_hint_of(target, parameter))}")
    if not inspect.isclass(target):
        return functools.partial(target, **values) if values else target
    return _call(target, values, options, name, where)


def place(where: Where, option: str = "") -> str:
    """The start of a message about an option of the component at `where`, or about the component."""
    if callable(where):
        return where(option)
    return f"{where}.{option}" if option else where


def _call(target: type, values: Mapping[str, Any], options: Mapping[str, Any], name: str, where: Where) -> Any:
    """Construct; what a validator refuses is a fault of the config."""
    try:
        return target(**values)
    except (ValueError, TypeError) as error:
        # attrs' validators raise with the attribute and the value as further arguments, and quote its name first.
        text = str(error.args[0] if error.args else error)
        quoted = text.split("'")[1] if text.startswith("'") else ""
        raise ConfigError(f"{place(where, quoted if quoted in options else '')}: {name}: {text}") from error


def _hint(option: str, known: set[str]) -> str:
    return did_you_mean(option, known) or (
        f"; its options are {', '.join(sorted(known))}" if known else ", which has none"
    )


def _hint_of(target: Any, parameter: inspect.Parameter) -> Any:
    """The type of a parameter; `_ANY` where it has none, or one that exists for type checkers only."""
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        return typing.get_type_hints(holder, globalns=_namespace(target, parameter.name))[parameter.name]
    except NameError:
        return _ANY


def _namespace(target: Any, name: str) -> dict[str, Any]:
    """The globals of the module that wrote the annotation of `target`'s parameter `name`."""
    if not inspect.isclass(target):
        return dict(getattr(inspect.unwrap(getattr(target, "func", target)), "__globals__", {}))
    owners = (base for base in target.__mro__ if {name, f"_{name}"} & set(base.__dict__.get("__annotations__", ())))
    return vars(sys.modules[next(owners, target).__module__])


def _checked(value: Any, hint: Any, where: str) -> Any:
    """`value` as a `hint`: ints serve as floats, lists as tuples, mappings as attrs classes; never text as numbers."""
    if hint in (_ANY, Any, object) or (inspect.isclass(hint) and type(value) is hint):
        return value
    from cattrs.errors import StructureHandlerNotFoundError

    try:
        return _converter().structure(value, hint)
    except StructureHandlerNotFoundError:
        return value  # a protocol or a callable: only the constructor can tell
    except Exception as error:
        raise ConfigError(f"{where}: expected {_text(hint)}, found {value!r} ({type(value).__name__})") from error


def _typed(hint: Any) -> str:
    return "" if hint is _ANY else f" ({_text(hint)})"


def _text(hint: Any) -> str:
    return hint.__name__ if inspect.isclass(hint) and not typing.get_args(hint) else str(hint).replace("typing.", "")


@functools.cache
def _converter() -> Converter:
    """A converter that never reads one kind of scalar as another."""
    from cattrs import Converter
    from cattrs.strategies import configure_union_passthrough

    converter = Converter(forbid_extra_keys=True)
    for kind, accepted in ((bool, bool), (int, int), (float, int | float), (str, str), (Path, str | Path)):
        converter.register_structure_hook(kind, _strictly(kind, accepted))
    configure_union_passthrough(str | bool | int | float | None, converter)
    return converter


def _strictly(kind: Callable[[Any], Any], accepted: Any) -> Callable[[Any, Any], Any]:
    def structure(value: Any, _: Any) -> Any:
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"not a {kind}")
        return kind(value)

    return structure
