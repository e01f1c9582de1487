"""Strict conversion of plain data into the config classes, and back (`dump`).

Unknown options and wrong types are errors. cattrs stops at the first error by default; the hooks here collect all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

import attrs
import cattrs

from agentrl_core.config.foreign_hints import counterpart
from agentrl_core.config.nearest import did_you_mean
from agentrl_core.config.nodes import describe, with_user_alone
from agentrl_core.config.schema import Component, ModelConfig, RunConfig
from agentrl_core.config.sft import COUNTERPARTS, SftConfig

Path: TypeAlias = tuple[str, ...]
C = TypeVar("C", bound=RunConfig | SftConfig)


@attrs.frozen
class ConfigFault:
    """One fault of the data."""

    path: Path
    """Path of the faulty value; for a missing option, the path that it should have."""
    text: str


class InvalidError(ValueError):
    """Raised if data does not fit its config class; holds all findings."""

    def __init__(self, *findings: ConfigFault) -> None:
        super().__init__("; ".join(f"{'.'.join(item.path)}: {item.text}" for item in findings))
        self.findings = findings


def structure(data: Mapping[str, Any], schema: type[C]) -> C:
    """Return the config for plain data with our option names; raise `InvalidError` with all findings."""
    return _converter.structure(data, schema)


def dump(config: RunConfig | SftConfig) -> dict[str, Any]:
    """Return `config` as plain data with all defaults; `parse` turns it back into an equal config."""
    return cast("dict[str, Any]", _converter.unstructure(config))


def dump_without_passwords(config: RunConfig | SftConfig) -> dict[str, Any]:
    """Return `config` as `dump` does, for files and trackers: the address of the store has no password."""
    dumped = dump(config)
    return {**dumped, "store": _without_passwords(dumped["store"])}


def _without_passwords(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_passwords(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_passwords(item) for item in value]
    return with_user_alone(value) if isinstance(value, str) else value


def default_of(name: str) -> Any:
    """Return the plain default of a top-level option of `RunConfig`; None if it has none."""
    default = attrs.fields_dict(RunConfig)[name].default if name in attrs.fields_dict(RunConfig) else None
    return None if isinstance(default, attrs.Factory) else _converter.unstructure(default)  # type: ignore[arg-type]  # a class at run time


def _class_hook(cls: type) -> Callable[[Any, Any], Any]:
    """Return the structure hook of one section, which checks all options before it raises."""
    kinds = get_type_hints(cls)
    attributes = attrs.fields_dict(cls)

    def structure_section(value: Any, _: Any) -> Any:
        if not isinstance(value, Mapping):
            raise InvalidError(ConfigFault((), f"expected a section of options, found {describe(value)}"))
        findings = [ConfigFault((name,), _unknown(name, cls)) for name in value if name not in attributes]
        values = {}
        for name, attribute in attributes.items():
            given = value.get(name, attrs.NOTHING)
            if given is attrs.NOTHING or (given is None and _is_section(kinds[name])):
                if attribute.default is attrs.NOTHING:
                    findings.append(ConfigFault((name,), "missing"))
                continue
            with _collect(findings, name):
                values[name] = _structure_option(given, kinds[name], attribute)
        if findings:
            raise InvalidError(*findings)
        return cls(**values)

    return structure_section


def _structure_option(value: Any, kind: Any, attribute: attrs.Attribute[Any]) -> Any:
    # `loss: {clip: 0.3}` without `use` keeps the default component and only sets its options.
    if kind is Component and isinstance(attribute.default, Component) and isinstance(value, Mapping):
        value = {"use": attribute.default.use, **value}
    structured = _converter.structure(value, kind)
    if attribute.validator is not None:
        try:
            attribute.validator(None, attribute, structured)
        except ValueError as error:
            raise InvalidError(ConfigFault((), str(error).removeprefix(f"{attribute.name}: "))) from error
    return structured


def _component(value: Any, _: Any) -> Component:
    if isinstance(value, str):
        value = {"use": value}
    if not isinstance(value, Mapping):
        raise InvalidError(ConfigFault((), f"expected a name or a section {{use: NAME, …}}, found {describe(value)}"))
    if "use" not in value:
        raise InvalidError(ConfigFault(("use",), "missing: the name of the component"))
    with _under("use"):
        use = _text(value["use"], str)
        if not use:
            raise InvalidError(ConfigFault((), "expected a name, found an empty text"))
    return Component(use, {name: item for name, item in value.items() if name != "use"})


def _model(value: Any, _: Any) -> ModelConfig:
    """Structure the section `model`; its unknown options belong to the builder that `use` names."""
    if not isinstance(value, Mapping):
        raise InvalidError(
            ConfigFault((), f"expected a section {{path: FOLDER}} or {{use: NAME, …}}, found {describe(value)}")
        )
    known = {name: item for name, item in value.items() if name in _MODEL_OPTIONS}
    options = {name: item for name, item in value.items() if name not in _MODEL_OPTIONS}
    findings = []
    if options and known.get("use") is None:
        why = "; without `use` there is no builder that could take it"
        findings = [
            ConfigFault((name,), f"unknown option{did_you_mean(name, _MODEL_OPTIONS) or why}") for name in options
        ]
    if known.get("use") is not None and known.get("path") is not None:
        findings.append(ConfigFault(("use",), "expected either path or use, found both"))
    with _collect(findings):
        model: ModelConfig = _structure_model({**known, "options": options}, ModelConfig)
    if findings:
        raise InvalidError(*findings)
    return model


_MODEL_OPTIONS = ("path", "use", "dtype")


def _text(value: Any, _: Any) -> str:
    if not isinstance(value, str):
        fix = f"; put it in quotes: '{value}'" if isinstance(value, int | float) else ""
        if isinstance(value, Mapping) and "use" in value:  # a scorer with options where a name is expected
            fix = "; write its options under `scorers:`, as `NAME: {use: …}`, and that NAME here"
        raise InvalidError(ConfigFault((), f"expected a text, found {describe(value)}{fix}"))
    return value


def _whole_number(value: Any, _: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidError(ConfigFault((), f"expected a whole number, found {describe(value)}"))
    return value


def _number(value: Any, _: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not -_LARGEST < value < _LARGEST:
        raise InvalidError(ConfigFault((), f"expected a number, found {describe(value)}"))
    return float(value)


_LARGEST = 1e300
"""Beyond it, and at nan, a number is a mistake."""


def _switch(value: Any, _: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidError(ConfigFault((), f"expected true or false, found {describe(value)}"))
    return value


def _choice(value: Any, kind: Any) -> Any:
    allowed = get_args(kind)
    if not isinstance(value, str) or value not in allowed:
        near = did_you_mean(value, allowed) if isinstance(value, str) else ""
        raise InvalidError(ConfigFault((), f"expected {' or '.join(allowed)}, found {describe(value)}{near}"))
    return value


def _sequence(value: Any, kind: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidError(ConfigFault((), f"expected a list, found {describe(value)}"))
    kinds = get_args(kind)
    if kinds[-1] is ...:
        kinds = kinds[:1] * len(value)
    if len(value) != len(kinds):
        raise InvalidError(ConfigFault((), f"expected a list of {len(kinds)}, found {len(value)}"))
    findings: list[ConfigFault] = []
    items = []
    for index, (item, item_kind) in enumerate(zip(value, kinds, strict=True)):
        with _collect(findings, str(index)):
            items.append(_converter.structure(item, item_kind))
    if findings:
        raise InvalidError(*findings)
    return tuple(items)


def _named_files(value: Any, _: Any) -> Mapping[str, str] | str | None:
    """Structure `data.eval`: one file, a mapping of names to files, or None."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        raise InvalidError(ConfigFault((), f"expected a file or a section `NAME: FILE`, found {describe(value)}"))
    findings: list[ConfigFault] = []
    for name, item in value.items():
        with _collect(findings, name):
            _text(item, str)
    if findings:
        raise InvalidError(*findings)
    return dict(value)


def _named_sections(value: Any, kind: Any) -> Mapping[str, Any]:
    """Structure a mapping of the user's own names to sections."""
    if not isinstance(value, Mapping):
        raise InvalidError(ConfigFault((), f"expected a section with a section for each name, found {describe(value)}"))
    findings: list[ConfigFault] = []
    sections = {}
    for name, item in value.items():
        with _collect(findings, name):
            sections[name] = _converter.structure(item, get_args(kind)[1])
    if findings:
        raise InvalidError(*findings)
    return sections


def _holds_sections(kind: Any) -> bool:
    return get_origin(kind) is Mapping and attrs.has(get_args(kind)[1])


def _is_section(kind: Any) -> bool:
    """True if an empty value means the defaults, as for a section whose options are all commented out."""
    return attrs.has(kind) or _holds_sections(kind) or _is_generic(tuple)(kind)


def _is_generic(origin: Any) -> Callable[[Any], bool]:
    return lambda kind: get_origin(kind) is origin


@contextmanager
def _collect(findings: list[ConfigFault], *path: str) -> Iterator[None]:
    """Catch an `InvalidError` of the block, and add its findings to `findings`, with `path` in front of theirs."""
    try:
        yield
    except InvalidError as error:
        findings.extend(ConfigFault((*path, *item.path), item.text) for item in error.findings)


@contextmanager
def _under(name: str) -> Iterator[None]:
    findings: list[ConfigFault] = []
    with _collect(findings, name):
        yield
    if findings:
        raise InvalidError(*findings)


def _unknown(name: str, cls: type) -> str:
    """Return the message for an option that a section does not have, with a hint if there is one."""
    if cls in COUNTERPARTS and name in attrs.fields_dict(COUNTERPARTS[cls]):
        return "only for `agentrl run`, because supervised fine-tuning samples nothing; remove it"
    if cls in COUNTERPARTS:
        return f"unknown option{did_you_mean(name, attrs.fields_dict(cls)) or hint_elsewhere(name, SftConfig)}"
    return f"unknown option{counterpart(name) or did_you_mean(name, attrs.fields_dict(cls)) or hint_elsewhere(name)}"


def hint_elsewhere(name: str, schema: type = RunConfig) -> str:
    """Return a hint to an option of the same name in another section; empty if there is none."""
    home = _homes(schema).get(name)
    return f" (did you mean {home}?)" if home else ""


@functools.cache
def _homes(schema: type) -> Mapping[str, str]:
    """Return the first dotted key of each option name that stands inside a section."""
    # Reversed, so that the first of several options with one name wins.
    paths = [path for path in _option_paths(schema) if len(path) > 1]
    return {path[-1]: ".".join(path) for path in reversed(paths)}


def _option_paths(cls: type, path: Path = ()) -> Iterator[Path]:
    for name, kind in get_type_hints(cls).items():
        yield (*path, name)
        if attrs.has(kind) and kind not in (Component, ModelConfig):
            yield from _option_paths(kind, (*path, name))


def _plain(value: Any) -> Any:
    """Return the options of a component as plain dicts and lists."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _plain_model(model: ModelConfig) -> dict[str, Any]:
    named = {name: getattr(model, name) for name in _MODEL_OPTIONS if getattr(model, name) is not None}
    return {**named, **_plain(model.options)}


def _build_converter() -> cattrs.Converter:
    # The hooks collect all findings with their paths themselves, so cattrs' own error groups are switched off.
    converter = cattrs.Converter(detailed_validation=False, unstruct_collection_overrides={tuple: list})
    converter.register_structure_hook_factory(attrs.has, _class_hook)
    for kind, hook in {
        str: _text,
        int: _whole_number,
        float: _number,
        bool: _switch,
        Component: _component,
        ModelConfig: _model,
    }.items():
        converter.register_structure_hook(kind, hook)
    converter.register_structure_hook_func(_is_generic(Literal), _choice)
    converter.register_structure_hook_func(_is_generic(tuple), _sequence)
    converter.register_structure_hook_func(lambda kind: kind == Mapping[str, str] | str | None, _named_files)
    converter.register_structure_hook_func(_holds_sections, _named_sections)
    converter.register_structure_hook_func(lambda kind: kind == Mapping[str, Any], lambda value, _: dict(value))
    converter.register_unstructure_hook(Component, lambda part: {"use": part.use, **_plain(part.options)})
    converter.register_unstructure_hook(ModelConfig, _plain_model)
    return converter


_converter = _build_converter()
_structure_model = _class_hook(ModelConfig)
