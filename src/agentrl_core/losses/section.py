"""Parse the config's `loss` section: separate the calculator's own options from those that every calculator has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import attrs
from attrs import field, validators

from agentrl_core.config.component import Component  # noqa: TC001 - the type of an option, read at run time
from agentrl_core.errors import ConfigError
from agentrl_core.losses.aggregate import AggregationConfig
from agentrl_core.plugins.options import Where, construct, place

ProximalMethod: TypeAlias = Literal["recompute", "loglinear"]

_AGGREGATION = frozenset(item.name for item in attrs.fields(AggregationConfig))
_COMMON = ("corrections", "proximal", "reference")
_METHODS = ("recompute", "loglinear")


@attrs.frozen(kw_only=True)
class LossSection:
    """Parts of the config section `loss: {use: NAME, …}`."""

    options: Mapping[str, Any] = field(factory=dict)
    """Options of the calculator itself."""
    aggregation: AggregationConfig = field(factory=AggregationConfig)
    corrections: tuple[Component, ...] = ()
    """Corrections around the calculator, the first one innermost."""
    proximal: ProximalMethod = field(default="recompute", validator=validators.in_(_METHODS))
    """Source of the proximal policy's log-probabilities, if a loss or correction reads them. `recompute`: exactly those
    of the policy before this step; costs one more forward pass for each update after the step's first. `loglinear`:
    interpolated by policy versions between behaviour and current log-probabilities (AReaL), without a forward pass."""
    reference: str | None = field(default=None, validator=validators.optional(validators.instance_of(str)))
    """Model directory of the reference policy; None: the policy before the first step."""

    @classmethod
    def read(
        cls, options: Mapping[str, Any], defaults: Mapping[str, Any] | None = None, *, where: Where = "loss"
    ) -> LossSection:
        """Separate the options beside `use`. `defaults` are the calculator's `aggregation_defaults`.

        Raises `ConfigError` for a wrong common option. The calculator checks its own options later.
        """
        common = {name: options[name] for name in _COMMON if options.get(name) is not None}
        if isinstance(common.get("reference"), Mapping):
            common["reference"] = _path(common["reference"], where)
        section: LossSection = construct(cls, common, name="loss", where=where, injected={})
        return attrs.evolve(
            section,
            options={name: value for name, value in options.items() if name not in _AGGREGATION.union(_COMMON)},
            aggregation=construct(
                AggregationConfig, _aggregation(options, defaults or {}), name="loss", where=where, injected={}
            ),
        )


def _aggregation(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the aggregation options: the config's over the calculator's defaults.

    The defaults belong to the calculator's own aggregation, so a config with another aggregation gets none of them.
    """
    own = {name: value for name, value in options.items() if name in _AGGREGATION}
    same = own.get("aggregation", defaults.get("aggregation")) == defaults.get("aggregation")
    return {**(defaults if same else {}), **own}


def _path(value: Mapping[str, Any], where: Where) -> Any:
    """Return the folder of `reference: {path: FOLDER}`, the long form of `reference: FOLDER`."""
    if set(value) != {"path"}:
        raise ConfigError(
            f"{place(where, 'reference')}: expected {{path: FOLDER}} of a model, found {dict(value)!r:.60}"
        )
    return value["path"]
