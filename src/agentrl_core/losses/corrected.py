"""Wrap a loss calculator in the corrections of a config (`loss.corrections`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from agentrl_core.errors import ConfigError
from agentrl_core.losses.contract import checked_output

if TYPE_CHECKING:
    from agentrl_core.api.losses import Correction, LossBatch, LossCalculator, LossOutput


@attrs.frozen(kw_only=True)
class Corrected:
    """Loss calculator whose loss is changed by each correction in turn."""

    calculator: LossCalculator
    corrections: tuple[Correction, ...]
    """Corrections in the order of application."""

    @property
    def needs(self) -> frozenset[str]:
        """Optional fields that the calculator or a correction reads."""
        return self.calculator.needs.union(*(item.needs for item in self.corrections))

    @property
    def stops_gradient(self) -> bool:
        """True if it is for the calculator or any correction."""
        return self._any("stops_gradient")

    @property
    def whole_sequences(self) -> bool:
        """True if it is for the calculator or any correction."""
        return self._any("whole_sequences")

    def loss(self, batch: LossBatch) -> LossOutput:
        """Return the corrected loss per token [N]; the trainer aggregates and divides it."""
        output = checked_output(self.calculator, batch)
        for item in self.corrections:
            changed = checked_output(item, batch, output)
            output = attrs.evolve(changed, metrics={**output.metrics, **changed.metrics})
        return output

    def _any(self, trait: str) -> bool:
        return any(getattr(part, trait, False) for part in (self.calculator, *self.corrections))


def corrected(calculator: LossCalculator, corrections: Sequence[Correction]) -> LossCalculator:
    """Return `calculator` wrapped in the corrections, the first one innermost; without corrections itself.

    Raises `ConfigError` if the weight proximal / behaviour would be applied twice.
    """
    if not corrections:
        return calculator
    weighing = [part for part in (calculator, *corrections) if getattr(part, "weighs_behaviour", False)]
    if len(weighing) > 1:
        names = " and ".join(type(part).__name__ for part in weighing)
        raise ConfigError(
            f"loss.corrections: {names} each multiply by proximal / behaviour, which would count twice; keep one: set "
            "`behaviour_weight: false` of ppo or `weighted: false` of masked_is, or remove a correction"
        )
    return Corrected(calculator=calculator, corrections=tuple(corrections))
