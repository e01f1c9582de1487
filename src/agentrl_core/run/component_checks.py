"""Base classes for checking and building the components of a config, shared by `run` and `sft`.

`PartChecks` compares options with constructors' signatures before anything starts. `BuiltParts` builds the components.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

from agentrl_core.batching.filters import as_filter
from agentrl_core.batching.shaping import as_shaping
from agentrl_core.chat import Chat
from agentrl_core.chat.parsers.hermes import HermesParser
from agentrl_core.config.schema import RunConfig
from agentrl_core.config.sft import SftConfig
from agentrl_core.errors import PluginError, UsageError
from agentrl_core.losses.contract import problem_of_needs
from agentrl_core.models.folder import no_model_in
from agentrl_core.plugins.options import bind
from agentrl_core.plugins.references import import_module, user_folders
from agentrl_core.run.loss import build_loss, settled_loss

if TYPE_CHECKING:
    from agentrl_core.config import LoadedConfig
    from agentrl_core.config.schema import Component
    from agentrl_core.plugins.registry import Registry

C = TypeVar("C", bound=RunConfig | SftConfig)

_METHODS = {
    "losses": "loss",
    "corrections": "correct",
    "advantages": "advantages",
    "credits": "credit",
    "filters": "keep",
    "shapings": "shape",
}
"""Method that every component of a kind must have, by kind."""
_OF_FUNCTIONS = {"filters": as_filter, "shapings": as_shaping}
"""Wrapper that turns a plain function into a component, for the kinds that accept functions."""
_INJECTED = {
    "engines": ("model_dir", "seed", "dtype"),
    "stores": ("path", "run"),
    "trackers": ("run_dir",),
    "models": ("directory", "seed", "conversations"),
}
"""Arguments that the run passes to constructors in addition to the config's options, by kind."""


@attrs.frozen(kw_only=True)
class ConfigSource(Generic[C]):
    """Config together with the place of each option in its file."""

    run: C
    base_dir: Path
    """Folder from which relative paths in the config start."""
    places: Callable[[str], Callable[[str], str]]
    """`places(section)(option)` is the text `config.yaml:9: section.option`; the option "" is the section itself."""

    @classmethod
    def from_file(cls, loaded: LoadedConfig[C]) -> ConfigSource[C]:
        """Wrap a config that was read from a file."""
        return cls(run=loaded.run, base_dir=loaded.base_dir, places=loaded.places)

    @classmethod
    def from_python(cls, run: C, base_dir: Path) -> ConfigSource[C]:
        """Wrap a config that was made in Python; messages then name the key without a file and line."""
        return cls(run=run, base_dir=base_dir, places=lambda key: lambda option: f"{key}.{option}" if option else key)

    def where(self, key: str) -> str:
        """Return the beginning of a message about a dotted key: `config.yaml:9: key`."""
        return self.places(key)("")


@attrs.define(kw_only=True)
class BuiltParts(Generic[C]):
    """Objects that a config names; those that need the run's folder are built later, by `build`."""

    given: ConfigSource[C]
    registry: Registry
    used: dict[str, str]
    """Origin of each component in use: `kind:name` -> `distribution==version module:attr`."""

    @property
    def config(self) -> C:
        """The run's config."""
        return self.given.run

    @property
    def base_dir(self) -> Path:
        """Folder from which relative paths in the config start."""
        return self.given.base_dir

    def close(self) -> None:
        """Release what the parts hold; there is nothing to release here."""

    def where(self, key: str) -> str:
        """Return the beginning of a message about a dotted key: `config.yaml:9: key`."""
        return self.given.where(key)

    def build(self, kind: str, key: str, component: Component, **injected: Any) -> Any:
        """Construct a component, and note in `used` which package it came from."""
        places, base_dir = self.given.places(key), self.base_dir
        built = self.registry.build(kind, component, where=places, base_dir=base_dir, **injected)
        self.used[f"{kind}:{component.use}"] = self.registry.describe(kind, component.use, base_dir=base_dir)
        return built


class PartChecks(Generic[C]):
    """Checks of the sections that `run` and `sft` share; each check yields one line per problem."""

    def __init__(self, given: ConfigSource[C], registry: Registry) -> None:
        self._given, self._run, self._registry = given, given.run, registry

    def imports(self) -> Iterator[str]:
        """Import the modules of `plugins.modules`, which may register components."""
        folders = user_folders(self._given.base_dir)
        for index, name in enumerate(self._run.plugins.modules):
            where = self._given.where(f"plugins.modules.{index}")
            try:
                import_module(name, folders)
            except PluginError as error:
                yield f"{where}: {error}"

    def model(self) -> Iterator[str]:
        """Check the policy's folder or builder, and its dtype."""
        model, where = self._run.model, self._given.where
        if model.use is not None:
            yield from self._with_options("models", "model", model.use, model.options)
        elif model.path is None:
            yield f"{where('model')}: the model is missing; set `path: FOLDER` of a model, or `use: tiny`"
        else:
            folder = self._given.base_dir / Path(model.path).expanduser()
            problem = no_model_in(model.path, self._given.base_dir)
            found = [problem] if problem else problems_of(lambda: self._chat(folder))
            yield from (f"{where('model.path')}: {text}" for text in found)
        if model.dtype == "bfloat16" and self._run.trainer.lr != 0:
            yield (
                f"{where('model.dtype')}: bfloat16 weights have too few digits to be trained: most steps round to no "
                "change at all. Leave dtype out, so that training uses float32 (or set trainer.lr: 0 to train nothing)"
            )

    def _chat(self, folder: Path) -> Chat:
        """Read the policy's chat template and tokenizer as the run does."""
        return Chat.from_directory(folder, parser=HermesParser())  # any parser: `sft` reads no replies

    def common(self) -> Iterator[str]:
        """Check the store, the trackers and the loss."""
        run = self._run
        yield from self._with_options("stores", "store", run.store.use, run.store.options)
        for index, item in enumerate(run.trackers):
            yield from self._with_options("trackers", f"trackers.{index}", item.use, item.options)
        yield from self._loss()

    def _loss(self) -> Iterator[str]:
        """Build the loss with its corrections, and check that the folder of its reference model exists."""
        try:
            _, section = build_loss(settled_loss(self._given, self._registry), self._build)
        except UsageError as error:
            yield str(error)
            return
        if section.reference is not None and (problem := no_model_in(section.reference, self._given.base_dir)):
            yield f"{self._given.where('loss.reference')}: {problem}"

    def _built(self, kind: str, key: str, component: Component, **injected: Any) -> Iterator[str]:
        yield from problems_of(lambda: self._build(kind, key, component, **injected))

    def _build(self, kind: str, key: str, component: Component, **injected: Any) -> Any:
        places, base_dir = self._given.places(key), self._given.base_dir
        built = self._registry.build(kind, component, where=places, base_dir=base_dir, **injected)
        method = _METHODS[kind]
        if kind in _OF_FUNCTIONS:
            built = _OF_FUNCTIONS[kind](built, component.use, where=places(""))
        if not callable(getattr(built, method, None)):
            found = getattr(built, "__qualname__", type(built).__qualname__)
            raise PluginError(
                f"{places('')}: '{component.use}' builds {found}, which has no method `{method}`; expected a class or "
                f"an object with `{method}(…)`"
            )
        if kind in {"losses", "corrections"} and (problem := problem_of_needs(built)):
            raise PluginError(f"{places('')}: '{component.use}': {problem}")
        return built

    def _find(self, kind: str, name: str, where: str) -> Any:
        return self._registry.load(kind, name, base_dir=self._given.base_dir, where=where)

    def _with_options(self, kind: str, key: str, name: str, options: Mapping[str, Any]) -> Iterator[str]:
        """Import a component, and compare its options with its constructor's signature, without calling it."""
        places, injected = self._given.places(key), dict.fromkeys(_INJECTED.get(kind, ()))

        def look() -> None:
            target = self._find(kind, name, places(""))
            bind(target, options, name=name, where=places, injected=injected)

        yield from problems_of(look)


def problems_of(action: Callable[[], object]) -> Iterator[str]:
    """Call `action`, and yield the message of the `UsageError` that it raises, if any."""
    try:
        action()
    except UsageError as error:
        yield str(error)
