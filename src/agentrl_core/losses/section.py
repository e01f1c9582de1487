"""The config's `loss` section: the calculator's own options, and those that every calculator has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import attrs
from attrs import field, validators

from agentrl_core.config.schema import Component
from agentrl_core.errors import ConfigError
from agentrl_core.losses.aggregate import AggregationConfig

ProximalMethod: TypeAlias = Literal["recompute", "loglinear"]

_AGGREGATION = frozenset(item.name for item in attrs.fields(AggregationConfig))
_COMMON = frozenset({"corrections", "proximal", "reference"})
_METHODS = ("recompute", "loglinear")


@attrs.frozen(kw_only=True)
class LossSection:
    """`loss: {use: NAME, …}`, parted."""

    options: Mapping[str, Any] = field(factory=dict)
    """The calculator's own."""
    aggregation: AggregationConfig = field(factory=AggregationConfig)
    corrections: tuple[Component, ...] = ()
    """What wraps the calculator, the first one innermost."""
    proximal: ProximalMethod = field(default="recompute", validator=validators.in_(_METHODS))
    """Where the log-probs of the proximal policy come from, if a loss or correction reads them. `recompute`: the policy
    before this step, exactly; a further forward only for the updates after the step's first. `loglinear`: interpolated
    by versions between what the sampler gave and what the policy gives now (AReaL), never a further forward."""
    reference: str | None = field(default=None, validator=validators.optional(validators.instance_of(str)))
    """Model directory of the reference policy; None is the policy before the first step."""

    @classmethod
    def read(cls, options: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> LossSection:
        """Part the options beside `use`. `defaults` are the calculator's `aggregation_defaults`.

        Raises `ConfigError` where those that every calculator has do not fit; the calculator checks its own.
        """
        try:
            return cls(
                options={name: value for name, value in options.items() if name not in _AGGREGATION | _COMMON},
                aggregation=AggregationConfig(**_aggregation(options, defaults or {})),
                corrections=_corrections(options.get("corrections") or ()),
                proximal=options.get("proximal", "recompute"),
                reference=_path(options.get("reference")),
            )
        except (TypeError, ValueError) as error:
            raise ConfigError(f"loss: {error.args[0]}") from error


def _aggregation(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The config's own options over the calculator's defaults; another aggregation than its takes none of them."""
    own = {name: value for name, value in options.items() if name in _AGGREGATION}
    same = own.get("aggregation", defaults.get("aggregation")) == defaults.get("aggregation")
    return {**(defaults if same else {}), **own}


def _corrections(items: Any) -> tuple[Component, ...]:
    if not isinstance(items, Sequence) or isinstance(items, str):
        raise ValueError(f"corrections: expected a list of names or sections {{use: NAME, …}}, found {items!r:.60}")  # noqa: TRY004  (a config's fault)
    return tuple(map(_component, items))


def _component(item: Any) -> Component:
    if isinstance(item, str) and item:
        return Component(item)
    if not (isinstance(item, Mapping) and isinstance(item.get("use"), str) and item["use"]):
        raise ValueError(f"corrections: expected a list of names or sections {{use: NAME, …}}, found {item!r:.60}")
    return Component(item["use"], {name: value for name, value in item.items() if name != "use"})


def _path(value: Any) -> Any:
    """`reference: FOLDER` or `reference: {path: FOLDER}`."""
    if isinstance(value, Mapping):
        if set(value) != {"path"}:
            raise ValueError(f"reference: expected {{path: FOLDER}} of a model, found {dict(value)!r:.60}")
        return value["path"]
    return value
