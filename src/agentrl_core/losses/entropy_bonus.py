"""A correction that rewards uncertainty: the entropy of the policy as a term of the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs
from attrs import field, validators

from agentrl_core.api.losses import LossOutput

if TYPE_CHECKING:
    from agentrl_core.api.losses import LossBatch


@attrs.frozen(kw_only=True)
class EntropyBonus:
    """l' = l - coefficient * H(pi_theta) at each loss token (A3C, arXiv 1602.01783, section 4).

    H in nats, of the whole distribution at the sampling temperature, with its exact gradient. Tokens that the loss
    dropped are included. Normaliser: the loss's own, over all loss tokens.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})

    coefficient: float = field(default=0.001, validator=validators.ge(0.0))
    """Weight of the term."""

    def correct(self, batch: LossBatch, output: LossOutput) -> LossOutput:
        """Subtract the term."""
        if batch.entropy is None:
            raise AssertionError("entropy was asked for")
        return LossOutput(per_token=output.per_token * output.keep - self.coefficient * batch.entropy, keep=batch.mask)
