"""Checks that `agentrl run` and `agentrl sft` share: of the model, the loss and every component that a config names.

Components that only hold values are built by the checks. For those that open files or load weights, the checks compare
the options with the constructor's signature, and the run builds them when it has its folder.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

from agentrl_core.chat import Chat
from agentrl_core.chat.parsers.hermes import HermesParser
from agentrl_core.config.component import AUTO, Component
from agentrl_core.config.schema import RunConfig
from agentrl_core.config.sft import SftConfig
from agentrl_core.errors import PluginError, UsageError
from agentrl_core.losses import LossSection
from agentrl_core.models.folder import no_model_in
from agentrl_core.models.placement import device_of
from agentrl_core.plugins.kinds import KINDS
from agentrl_core.plugins.references import import_module, resolve, user_folders
from agentrl_core.run.loss import build_loss, settled_loss

if TYPE_CHECKING:
    from agentrl_core.api.losses import LossCalculator
    from agentrl_core.config import LoadedConfig
    from agentrl_core.plugins.registry import Registry

C = TypeVar("C", bound=RunConfig | SftConfig)


@attrs.define(kw_only=True)
class BuiltComponents(Generic[C]):
    """Components that a config names: those that are built early, by the checks, and a way to build the others."""

    loaded: LoadedConfig[C]
    registry: Registry
    early: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    """Kind -> dotted key in the config -> the component that the checks have built, in the order of the config."""
    used: dict[str, str] = attrs.field(factory=dict)
    """Origin of each component in use: `kind:name` -> `distribution==version module:attr`."""

    @property
    def config(self) -> C:
        """The run's config."""
        return self.loaded.run

    @property
    def base_dir(self) -> Path:
        """Folder from which relative paths in the config start."""
        return self.loaded.base_dir

    @property
    def loss(self) -> LossCalculator:
        """The loss with its corrections."""
        calculator: LossCalculator = self.early["losses"]["loss"]
        return calculator

    @property
    def loss_section(self) -> LossSection:
        """Options of the section `loss` that every loss has."""
        return LossSection.read(self.config.loss.options)

    def close(self) -> None:
        """Release what the components hold; there is nothing to release here."""

    def where(self, key: str) -> str:
        """Return the beginning of a message about a dotted key: `config.yaml:9: key`."""
        return self.loaded.where(key)

    def of(self, kind: str) -> list[Any]:
        """Return the components of a kind that the checks have built, in the order of the config."""
        return list(self.early.get(kind, {}).values())

    def build(self, kind: str, key: str, component: Component, **arguments: Any) -> Any:
        """Construct a component, and note in `used` which package it came from; keep one of an `early` kind.

        `arguments` are those that only the run has; the others of `Kind.arguments` are taken from the config, if it has
        the option: a fine-tuning's config lacks some.
        """
        for name, option in KINDS[kind].arguments.items():
            if option:
                with contextlib.suppress(AttributeError):
                    arguments[name] = attrgetter(option)(self.config)
        places, base_dir = self.loaded.places(key), self.base_dir
        if "config_dir" in KINDS[kind].arguments:
            arguments["config_dir"] = base_dir
        if KINDS[kind].own_part:
            split: Callable[..., Any] = resolve(KINDS[kind].own_part).value  # type: ignore[assignment]  # a function
            component, more = split(component, key, places)
            arguments |= more
        built = self.registry.build(kind, component, where=places, base_dir=base_dir, **arguments)
        self.used[f"{kind}:{component.use}"] = self.registry.describe(kind, component.use, base_dir=base_dir)
        if KINDS[kind].early:
            self.early.setdefault(kind, {})[key] = built
        return built

    def build_loss(self) -> tuple[LossCalculator, LossSection]:
        """Construct the loss with its corrections, and keep it for the run; return it with its common options."""
        loss, section = build_loss(settled_loss(self.loaded, self.registry), self.build)
        self.early["losses"] = {"loss": loss}
        return loss, section


class ComponentChecks(Generic[C]):
    """Checks of the sections that `run` and `sft` share; each check yields one line per problem."""

    def __init__(self, loaded: LoadedConfig[C], registry: Registry) -> None:
        self._loaded, self._run, self._registry = loaded, loaded.run, registry
        self.built = BuiltComponents(loaded=loaded, registry=registry)
        """The components that the checks have built so far."""

    def imports(self) -> Iterator[str]:
        """Import the modules of `plugins.modules`, which may register components."""
        folders = user_folders(self._loaded.base_dir)
        for index, name in enumerate(self._run.plugins.modules):
            where = self._loaded.where(f"plugins.modules.{index}")
            try:
                import_module(name, folders)
            except PluginError as error:
                yield f"{where}: {error}"

    def model(self) -> Iterator[str]:
        """Check the policy's folder or builder, and that this machine has the device to train it on."""
        model, where = self._run.model, self._loaded.where
        if model.use is not None:
            builder = Component(model.use, model.options)
            yield from problems_of(functools.partial(self._component, "models", "model", builder))
        elif model.path is None:
            yield f"{where('model')}: the model is missing; set `path: FOLDER` of a model, or `use: tiny`"
        else:
            folder = self._loaded.base_dir / Path(model.path).expanduser()
            problem = no_model_in(model.path, self._loaded.base_dir)
            found = [problem] if problem else problems_of(lambda: self._chat(folder))
            yield from (f"{where('model.path')}: {text}" for text in found)
        device = self._run.trainer.device
        # Only a GPU may be missing, and asking for one imports torch.
        if device.startswith("cuda"):
            yield from problems_of(functools.partial(device_of, device, option=where("trainer.device")))

    def _chat(self, folder: Path) -> Chat:
        """Read the policy's chat template and tokenizer as the run does."""
        return Chat.from_directory(folder, parser=HermesParser())  # any parser: `sft` reads no replies

    def components(self) -> Iterator[str]:
        """Check the loss, and every component that the option of its kind names."""
        yield from self._loss()
        yield from self.of_kinds(*KINDS)

    def of_kinds(self, *kinds: str) -> Iterator[str]:
        """Check every component that the options of these kinds name."""
        for kind in kinds:
            for key, component in _named(self._run, KINDS[kind].option):
                yield from problems_of(functools.partial(self._component, kind, key, component))

    def _component(self, kind: str, key: str, component: Component) -> None:
        """Build a component, or only compare its options with its constructor's signature."""
        if KINDS[kind].early:
            self.built.build(kind, key, component)
        else:
            places, base_dir = self._loaded.places(key), self._loaded.base_dir
            self._registry.check(kind, component, where=places, base_dir=base_dir)

    def _loss(self) -> Iterator[str]:
        """Build the loss with its corrections, and check that the folder of its reference model exists."""
        try:
            _, section = self.built.build_loss()
        except UsageError as error:
            yield str(error)
            return
        if section.reference is not None and (problem := no_model_in(section.reference, self._loaded.base_dir)):
            yield f"{self._loaded.where('loss.reference')}: {problem}"


def _named(config: RunConfig | SftConfig, option: str) -> Iterator[tuple[str, Component]]:
    """Yield key and value of each component that a dotted option of the config names."""
    value: Any = config
    for name in filter(None, option.split(".")):
        value = getattr(value, name, None)
    if isinstance(value, str):
        value = Component(value)
    if isinstance(value, Component):
        if value.use != AUTO:
            yield option, value
    elif isinstance(value, tuple):
        yield from ((f"{option}.{index}", item) for index, item in enumerate(value))


def problems_of(action: Callable[[], object]) -> Iterator[str]:
    """Call `action`, and yield the message of the `UsageError` that it raises, if any."""
    try:
        action()
    except UsageError as error:
        yield str(error)
