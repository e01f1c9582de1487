"""A loss calculator with corrections around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from agentrl_core.errors import ConfigError
from agentrl_core.losses.checked import made_by

if TYPE_CHECKING:
    from agentrl_core.api.losses import Correction, LossBatch, LossCalculator, LossOutput


@attrs.frozen(kw_only=True)
class Corrected:
    """The calculator's loss, changed by each correction in turn."""

    calculator: LossCalculator
    corrections: tuple[Correction, ...]

    @property
    def needs(self) -> frozenset[str]:
        """What the calculator and the corrections read, together."""
        return self.calculator.needs.union(*(item.needs for item in self.corrections))

    @property
    def stops_gradient(self) -> bool:
        """Whether any part does."""
        return self._any("stops_gradient")

    @property
    def whole_sequences(self) -> bool:
        """Whether any part does."""
        return self._any("whole_sequences")

    def loss(self, batch: LossBatch) -> LossOutput:
        """Per-token loss; aggregation and its denominator are the trainer's."""
        output = made_by(self.calculator, batch)
        for item in self.corrections:
            changed = made_by(item, batch, output)
            output = attrs.evolve(changed, metrics={**output.metrics, **changed.metrics})
        return output

    def _any(self, trait: str) -> bool:
        return any(getattr(part, trait, False) for part in (self.calculator, *self.corrections))


def corrected(calculator: LossCalculator, corrections: Sequence[Correction]) -> LossCalculator:
    """Wrap `calculator`, the first correction innermost; without any it is returned as it is.

    Raises `ConfigError` where the weight between proximal and behaviour policy would be counted twice.
    """
    if not corrections:
        return calculator
    weighing = [part for part in (calculator, *corrections) if getattr(part, "weighs_behaviour", False)]
    if len(weighing) > 1:
        names = " and ".join(type(part).__name__ for part in weighing)
        raise ConfigError(
            f"loss.corrections: {names} each multiply by proximal / behaviour, which would count twice; keep one, by "
            "`behaviour_weight: false` of ppo, `weighted: false` of masked_is, or leaving one correction out"
        )
    return Corrected(calculator=calculator, corrections=tuple(corrections))
