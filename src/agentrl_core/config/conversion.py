"""Convert plain data into declared types and find all faults in it: for sections of the config, options of components.

Scalars are strict: a text is never a number, true is no 1. Lists become tuples or sets where these are declared, and
mappings become attrs classes. Types that nothing here knows are left to the constructor that gets the value.
"""

from __future__ import annotations

import collections.abc
import functools
import types
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import attrs
from cattrs import Converter
from cattrs.errors import StructureHandlerNotFoundError

from agentrl_core.config.component import Component
from agentrl_core.config.nearest import did_you_mean
from agentrl_core.config.nodes import describe
from agentrl_core.errors import ConfigError

Option: TypeAlias = "Callable[[Any, Any, attrs.Attribute[Any]], Any]"
"""Function `(value, type, attribute)` that converts the value of one option of a section."""


@attrs.frozen
class ConfigFault:
    """One fault of the data."""

    path: tuple[str, ...]
    """Path of the faulty value; for a missing option, the path that it should have."""
    text: str


class InvalidError(ValueError):
    """Raised if data does not fit its type; holds all findings."""

    def __init__(self, *findings: ConfigFault) -> None:
        super().__init__("; ".join(f"{'.'.join(item.path)}: {item.text}" for item in findings))
        self.findings = findings


def convert(value: Any, kind: Any, where: Callable[[str], str]) -> Any:
    """Return `value` as a `kind`; a value of a type that nothing here knows is returned as it is.

    Raises `ConfigError` with the first fault. `where(path)` is the beginning of its message; "" stands for `value`.
    """
    try:
        return _options_converter().structure(value, kind)
    except StructureHandlerNotFoundError:
        return value
    except InvalidError as error:
        fault = error.findings[0]
        raise ConfigError(f"{where('.'.join(fault.path))}: {fault.text}") from error
    except Exception as error:
        raise ConfigError(f"{where('')}: expected {type_name(kind)}, found {describe(value)}") from error


def type_name(kind: Any) -> str:
    """Return the name of a type for messages: `a whole number or null`."""
    if kind in _NAMES:
        return _NAMES[kind]
    origin = get_origin(kind)
    if origin is Literal:
        return " or ".join(map(str, get_args(kind)))
    if origin in (Union, types.UnionType):
        return " or ".join("null" if item is types.NoneType else type_name(item) for item in get_args(kind))
    if attrs.has(kind) or origin in _MAPPINGS:
        return "a section"
    if origin in _COLLECTIONS:
        return "a list"
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")


def new_converter() -> Converter:
    """Return a converter whose hooks collect all findings, with their paths, before they raise `InvalidError`."""
    # The hooks collect the findings themselves, so cattrs' own error groups are switched off.
    converter = Converter(
        detailed_validation=False, forbid_extra_keys=True, unstruct_collection_overrides={tuple: list}
    )
    converter.register_structure_hook_factory(
        attrs.has, lambda cls: section_hook(cls, lambda value, kind, _: converter.structure(value, kind))
    )
    for kind, hook in {
        str: text,
        int: _whole_number,
        float: _number,
        bool: _switch,
        Path: _path,
        Component: _component,
    }.items():
        converter.register_structure_hook(kind, hook)
    for origins, generic_hook in (
        ((Literal,), _choice),
        ((Union, types.UnionType), functools.partial(_union, converter)),
        (_COLLECTIONS, functools.partial(_list, converter)),
        (_MAPPINGS, functools.partial(_mapping, converter)),
    ):
        converter.register_structure_hook_func(functools.partial(_is_of, origins), generic_hook)
    return converter


def section_hook(
    cls: type,
    convert_option: Option,
    unknown: Callable[[str, type], str] = lambda name, cls: f"unknown option{did_you_mean(name, _options(cls))}",
) -> Callable[[Any, Any], Any]:
    """Return the structure hook of an attrs class, which checks all options before it raises.

    `unknown(name, cls)` is the message for an option that the class does not have.
    """
    options, kinds = _options(cls), _kinds(cls)

    def structure_section(value: Any, _: Any) -> Any:
        if not isinstance(value, Mapping):
            raise refusal_of(value, "a section of options")
        values = {}
        with gathering() as under:
            for name in value:
                if name not in options:
                    with under(name):
                        raise InvalidError(ConfigFault((), unknown(name, cls)))
            for name, attribute in options.items():
                option, kind = value.get(name, attrs.NOTHING), kinds.get(attribute.name, Any)
                with under(name):
                    if option is not attrs.NOTHING and not (option is None and _is_section(kind)):
                        values[name] = convert_option(option, kind, attribute)
                    elif attribute.default is attrs.NOTHING:
                        raise InvalidError(ConfigFault((), "missing"))
        try:
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise InvalidError(ConfigFault((), str(error.args[0] if error.args else error))) from error

    return structure_section


def refusal_of(value: Any, expected: str, advice: str = "") -> InvalidError:
    """Return the error for a value that is not what was expected."""
    return InvalidError(ConfigFault((), f"expected {expected}, found {describe(value)}{advice}"))


@contextmanager
def gathering() -> Iterator[Callable[..., AbstractContextManager[None]]]:
    """Give `under(*path)`, whose blocks may raise `InvalidError`; raise one with all their findings at the end.

    `path` is put in front of the findings' own paths.
    """
    findings: list[ConfigFault] = []

    @contextmanager
    def under(*path: str) -> Iterator[None]:
        try:
            yield
        except InvalidError as error:
            findings.extend(ConfigFault((*path, *item.path), item.text) for item in error.findings)

    yield under
    if findings:
        raise InvalidError(*findings)


def _options(cls: type) -> Mapping[str, attrs.Attribute[Any]]:
    """Return the options of an attrs class: its fields by the names of its constructor's parameters."""
    return {attribute.alias: attribute for attribute in attrs.fields(cls) if attribute.init}


def _kinds(cls: type) -> Mapping[str, Any]:
    try:
        return get_type_hints(cls)
    except NameError:  # a type that exists only for type checkers
        return {}


def _is_section(kind: Any) -> bool:
    """True if an empty value means the defaults, as for a section whose options are all commented out."""
    holds_sections = get_origin(kind) is Mapping and attrs.has(get_args(kind)[1])
    return attrs.has(kind) or get_origin(kind) is tuple or holds_sections


def _is_of(origins: Container[Any], kind: Any) -> bool:
    return (get_origin(kind) or kind) in origins


def text(value: Any, _: Any) -> str:
    """Return `value` if it is a text; a structure hook."""
    if not isinstance(value, str):
        fix = f"; put it in quotes: '{value}'" if isinstance(value, int | float) else ""
        raise refusal_of(value, "a text", fix)
    return value


def _whole_number(value: Any, _: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise refusal_of(value, "a whole number")
    return value


def _number(value: Any, _: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise refusal_of(value, "a number")
    try:
        return float(value)
    except OverflowError as error:
        raise refusal_of(value, "a number") from error


def _switch(value: Any, _: Any) -> bool:
    if not isinstance(value, bool):
        raise refusal_of(value, "true or false")
    return value


def _path(value: Any, _: Any) -> Path:
    if not isinstance(value, str | Path):
        raise refusal_of(value, "a path")
    return Path(value)


def _choice(value: Any, kind: Any) -> Any:
    for allowed in get_args(kind):
        if value == allowed and type(value) is type(allowed):
            return allowed
    near = did_you_mean(value, map(str, get_args(kind))) if isinstance(value, str) else ""
    raise refusal_of(value, type_name(kind), near)


def _component(value: Any, _: Any) -> Component:
    if isinstance(value, str):
        value = {"use": value}
    if not isinstance(value, Mapping):
        raise refusal_of(value, _NAMES[Component])
    if "use" not in value:
        raise InvalidError(ConfigFault(("use",), "missing: the name of the component"))
    with gathering() as under, under("use"):
        if not text(value["use"], str):
            raise InvalidError(ConfigFault((), "expected a name, found an empty text"))
    return Component(value["use"], {name: item for name, item in value.items() if name != "use"})


def _union(converter: Converter, value: Any, kind: Any) -> Any:
    """Convert to the first member that fits, the value's own type before the others."""
    members = [member for member in get_args(kind) if member is not types.NoneType]
    optional = len(members) < len(get_args(kind))
    if value is None and optional:
        return None
    unknown, error = False, refusal_of(value, type_name(kind))
    for member in sorted(members, key=lambda member: type(value) is not member):
        try:
            return converter.structure(value, member)
        except StructureHandlerNotFoundError:
            unknown = True
        except InvalidError as refused:
            # A fault inside of the value says more than that the value is none of the members.
            if refused.findings[0].path or len(members) == 1:
                error = refused
        except Exception:  # noqa: BLE001, S112  # cattrs' own hooks raise anything; the next member may fit
            continue
    if unknown:
        return value
    raise error


def _list(converter: Converter, value: Any, kind: Any) -> Any:
    origin, kinds = get_origin(kind) or kind, get_args(kind) or (Any, ...)
    make = _COLLECTIONS[origin]
    if not isinstance(value, (list, tuple, make)):
        raise refusal_of(value, "a list")
    if origin is not tuple or kinds[-1] is ...:
        kinds = kinds[:1] * len(value)
    if len(value) != len(kinds):
        raise InvalidError(ConfigFault((), f"expected a list of {len(kinds)}, found {len(value)}"))
    items = []
    with gathering() as under:
        for index, (item, item_kind) in enumerate(zip(value, kinds, strict=True)):
            with under(str(index)):
                items.append(converter.structure(item, item_kind))
    return make(items)


def _mapping(converter: Converter, value: Any, kind: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise refusal_of(value, "a section")
    key_kind, item_kind = get_args(kind) or (Any, Any)
    section = {}
    with gathering() as under:
        for name, item in value.items():
            with under(str(name)):
                section[converter.structure(name, key_kind)] = converter.structure(item, item_kind)
    return section


_NAMES: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Path: "a path",
    Component: "a name or a section {use: NAME, …}",
}
"""Type -> its name in messages."""
_COLLECTIONS: Mapping[Any, type[list[Any] | tuple[Any, ...] | set[Any] | frozenset[Any]]] = {
    tuple: tuple,
    list: list,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: tuple,
    collections.abc.Set: frozenset,
    collections.abc.Collection: tuple,
    collections.abc.Iterable: tuple,
}
"""Declared type -> the type that a list in the config becomes."""
_MAPPINGS = (dict, Mapping, collections.abc.MutableMapping)


@functools.cache
def _options_converter() -> Converter:
    return new_converter()
