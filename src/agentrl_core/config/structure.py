"""Structure plain data as the config classes, and back (`dump`): the hints and defaults that only configs have.

The conversion of single values is in `conversion.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast, get_type_hints

import attrs

from agentrl_core.config.component import Component
from agentrl_core.config.conversion import (
    ConfigFault,
    InvalidError,
    gathering,
    new_converter,
    refusal_of,
    section_hook,
    text,
)
from agentrl_core.config.foreign_hints import counterpart
from agentrl_core.config.nearest import did_you_mean
from agentrl_core.config.nodes import with_user_alone, without_url_passwords
from agentrl_core.config.schema import RunConfig
from agentrl_core.config.sft import COUNTERPARTS, SftConfig
from agentrl_core.config.training_sections import ModelConfig

C = TypeVar("C", bound=RunConfig | SftConfig)

_MODEL_OPTIONS = ("path", "use", "dtype")
_LARGEST = 1e300
"""Beyond it, and at nan, a number in a section of the config is a mistake."""


def structure(data: Mapping[str, Any], schema: type[C]) -> C:
    """Return the config for plain data with our option names; raise `InvalidError` with all findings."""
    return _converter.structure(data, schema)


def dump(config: RunConfig | SftConfig) -> dict[str, Any]:
    """Return `config` as plain data with all defaults; `parse` turns it back into an equal config."""
    return cast("dict[str, Any]", _converter.unstructure(config))


def dump_without_passwords(config: RunConfig | SftConfig) -> dict[str, Any]:
    """Return `config` as `dump` does, for files and trackers: no URL in it has a password.

    The store's address also loses options that are secret. A run that resumes needs the passwords again: the store
    takes its own from the environment, and other components their URL from an override.
    """
    dumped = {name: _cleaned(value, without_url_passwords) for name, value in dump(config).items()}
    return {**dumped, "store": _cleaned(dumped["store"], with_user_alone)}


def _cleaned(value: Any, clean: Callable[[str], str]) -> Any:
    """Return plain data with every text in it cleaned."""
    if isinstance(value, dict):
        return {name: _cleaned(item, clean) for name, item in value.items()}
    if isinstance(value, list):
        return [_cleaned(item, clean) for item in value]
    return clean(value) if isinstance(value, str) else value


def default_of(name: str) -> Any:
    """Return the plain default of a top-level option of `RunConfig`; None if it has none."""
    default = attrs.fields_dict(RunConfig)[name].default if name in attrs.fields_dict(RunConfig) else None
    return None if isinstance(default, attrs.Factory) else _converter.unstructure(default)  # type: ignore[arg-type]  # a class at run time


def _structure_option(value: Any, kind: Any, attribute: attrs.Attribute[Any]) -> Any:
    # `loss: {clip: 0.3}` without `use` keeps the default component and only sets its options.
    if kind is Component and isinstance(attribute.default, Component) and isinstance(value, Mapping):
        value = {"use": attribute.default.use, **value}
    structured = _converter.structure(value, kind)
    if isinstance(structured, float) and not -_LARGEST < structured < _LARGEST:
        raise refusal_of(value, "a number")
    if attribute.validator is not None:
        try:
            attribute.validator(None, attribute, structured)
        except ValueError as error:
            raise InvalidError(ConfigFault((), str(error).removeprefix(f"{attribute.name}: "))) from error
    return structured


def _text(value: Any, _: Any) -> str:
    if isinstance(value, Mapping) and "use" in value:  # a scorer with options where a name is expected
        fix = "; write its options under `scorers:`, as `NAME: {use: …}`, and that NAME here"
        raise refusal_of(value, "a text", fix)
    return text(value, str)


def _model(value: Any, _: Any) -> ModelConfig:
    """Structure the section `model`; its unknown options belong to the builder that `use` names."""
    if not isinstance(value, Mapping):
        raise refusal_of(value, "a section {path: FOLDER} or {use: NAME, …}")
    known = {name: item for name, item in value.items() if name in _MODEL_OPTIONS}
    options = {name: item for name, item in value.items() if name not in _MODEL_OPTIONS}
    model: ModelConfig
    with gathering() as under:
        for name in options if known.get("use") is None else ():
            why = did_you_mean(name, _MODEL_OPTIONS) or "; without `use` there is no builder that could take it"
            with under(name):
                raise InvalidError(ConfigFault((), f"unknown option{why}"))
        with under("use"):
            if known.get("use") is not None and known.get("path") is not None:
                raise InvalidError(ConfigFault((), "expected either path or use, found both"))
        with under():
            model = _structure_model({**known, "options": options}, ModelConfig)
    return model


def _unknown(name: str, cls: type) -> str:
    """Return the message for an option that a section does not have, with a hint if there is one."""
    if cls in COUNTERPARTS and name in attrs.fields_dict(COUNTERPARTS[cls]):
        return "only for `agentrl run`, because supervised fine-tuning samples nothing; remove it"
    near = did_you_mean(name, attrs.fields_dict(cls))
    if cls in COUNTERPARTS:
        return f"unknown option{near or hint_elsewhere(name, SftConfig)}"
    return f"unknown option{counterpart(name) or near or hint_elsewhere(name)}"


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


def _option_paths(cls: type, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
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


def _section_hook(cls: type) -> Any:
    return section_hook(cls, _structure_option, _unknown)


_converter = new_converter()
_converter.register_structure_hook(str, _text)
_converter.register_structure_hook_factory(lambda kind: attrs.has(kind) and kind is not Component, _section_hook)
_structure_model = _section_hook(ModelConfig)
_converter.register_structure_hook(ModelConfig, _model)
_converter.register_unstructure_hook(Component, lambda part: {"use": part.use, **_plain(part.options)})
_converter.register_unstructure_hook(ModelConfig, _plain_model)
