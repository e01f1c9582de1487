"""Correction that adds an entropy bonus, which keeps the policy exploring."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs
from attrs import field, validators

from agentrl_core.api.losses import LossOutput

if TYPE_CHECKING:
    from agentrl_core.api.losses import LossBatch


@attrs.frozen(kw_only=True)
class EntropyBonus:
    """Entropy bonus: l' = l - coefficient * H(pi_theta) at each loss token (A3C, arXiv 1602.01783, section 4).

    H in nats, of the whole distribution at the sampling temperature, with its exact gradient. Tokens that the loss
    drops get the bonus too. Normaliser: that of the loss, over all loss tokens.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})

    coefficient: float = field(default=0.001, validator=validators.ge(0.0))
    """Weight of the term."""

    def correct(self, batch: LossBatch, output: LossOutput) -> LossOutput:
        """Return the loss minus the bonus, for every token of the mask."""
        if batch.entropy is None:
            raise AssertionError("expected batch.entropy, because `needs` names it; found None")
        # Terms that the loss drops become 0 here, because `keep` becomes the mask: the bonus is for all tokens.
        return LossOutput(per_token=output.per_token * output.keep - self.coefficient * batch.entropy, keep=batch.mask)
