"""Build the loss with its corrections, and fill in the options that the config leaves to the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import attrs

from agentrl_core.api.models import is_pretrained
from agentrl_core.config.component import AUTO, Component
from agentrl_core.config.schema import RunConfig
from agentrl_core.config.sft import SftConfig
from agentrl_core.errors import ConfigError, PluginError
from agentrl_core.losses import LossSection, corrected
from agentrl_core.training.default_lr import with_rates

if TYPE_CHECKING:
    from agentrl_core.api.losses import LossCalculator
    from agentrl_core.config import LoadedConfig
    from agentrl_core.config.sampling_sections import SamplingConfig
    from agentrl_core.plugins.registry import Registry

C = TypeVar("C", bound=RunConfig | SftConfig)


class _Build(Protocol):
    def __call__(self, kind: str, key: str, component: Component, /) -> Any:
        """Construct the component at a dotted key of the config."""


def settled(loaded: LoadedConfig[C], registry: Registry) -> C:
    """Return the config with its open options written out: learning rates, aggregation, horizon and advantage.

    Learning rates depend on whether the model is pretrained. The other three come from the loss calculator's attributes
    `aggregation_defaults` and `advantage_default`, where the config does not set them. Raises `UsageError` if the loss
    cannot be found or its section is wrong.
    """
    pretrained = is_pretrained_model(loaded, registry)
    run = with_rates(attrs.evolve(loaded.run, loss=settled_loss(loaded, registry)), pretrained=pretrained)
    if not isinstance(run, RunConfig):
        return run
    default = _default(_calculator(loaded, registry), loaded, "advantage_default", {"use": "grpo"})
    return attrs.evolve(run, advantage=_advantage(run.advantage, default))


def is_pretrained_model(loaded: LoadedConfig[Any], registry: Registry) -> bool:
    """Return whether the policy has trained weights: a folder (`model.path`), or a builder that is marked so.

    Raises `PluginError` if the builder cannot be found.
    """
    builder = loaded.run.model.use
    if builder is None:
        return True
    return is_pretrained(registry.load("models", builder, base_dir=loaded.base_dir, where=loaded.places("model")))


def settled_loss(loaded: LoadedConfig[Any], registry: Registry) -> Component:
    """Return the section `loss` with its aggregation, unit and horizon written out; raises like `settled`."""
    loss: Component = loaded.run.loss
    defaults = _default(_calculator(loaded, registry), loaded, "aggregation_defaults", {})
    options = dict(loss.options)
    chosen = options.get("aggregation", defaults.get("aggregation", "token_mean"))
    if chosen == "constant" and "horizon" not in {**defaults, **options}:
        # A fine-tuning's config has no section `sampling`.
        sampling: SamplingConfig | None = getattr(loaded.run, "sampling", None)
        if sampling is None or sampling.max_tokens is None:
            raise ConfigError(
                f"{loaded.where('loss')}: {loss.use} divides by a constant number of tokens per sequence, which is not "
                f"given; set loss.horizon{'' if sampling is None else ', or sampling.max_tokens, its default'}"
            )
        options["horizon"] = sampling.max_tokens
    try:
        aggregation = LossSection.read(options, defaults, where=loaded.places("loss")).aggregation
    except ConfigError as error:
        # Who is at fault? Without the loss's defaults this raises only if the config itself is wrong; if it passes,
        # the fault is in the defaults, and the error must name the loss's package.
        LossSection.read(options, where=loaded.places("loss"))
        name = f"{loaded.where('loss')}: '{loss.use}': its `aggregation_defaults` are wrong, {defaults}"
        raise PluginError(f"{name}: {error}") from error
    written: dict[str, Any] = {"aggregation": aggregation.aggregation, "unit": aggregation.unit}
    if aggregation.horizon is not None:
        written["horizon"] = aggregation.horizon
    return Component(loss.use, {**options, **written})


def _calculator(loaded: LoadedConfig[Any], registry: Registry) -> Any:
    return registry.load("losses", loaded.run.loss.use, base_dir=loaded.base_dir, where=loaded.places("loss"))


def _default(calculator: Any, loaded: LoadedConfig[Any], name: str, otherwise: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping that a calculator's class has under `name`; `otherwise` if it has none."""
    found = getattr(calculator, name, otherwise)
    if not isinstance(found, Mapping):
        raise PluginError(
            f"{loaded.where('loss')}: '{loaded.run.loss.use}': its `{name}` is {found!r:.60}; expected a mapping, as "
            "an attribute of the class"
        )
    return dict(found)


def _advantage(chosen: Component, default: dict[str, Any]) -> Component:
    if chosen.use != AUTO:
        return chosen
    name = default.pop("use")
    return Component(name, {**default, **chosen.options})


def build_loss(loss: Component, build: _Build) -> tuple[LossCalculator, LossSection]:
    """Construct the calculator, wrap its corrections around it, and return it with the parsed section `loss`."""
    section = LossSection.read(loss.options)
    calculator = build("losses", "loss", Component(loss.use, section.options))
    corrections = [
        build("corrections", f"loss.corrections.{index}", item) for index, item in enumerate(section.corrections)
    ]
    return corrected(calculator, corrections), section
