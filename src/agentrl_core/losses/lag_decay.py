"""Correction that lowers the weight of stale tokens, exponentially in their lag."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs
from attrs import field, validators

if TYPE_CHECKING:
    from agentrl_core.api.losses import LossBatch, LossOutput


@attrs.frozen(kw_only=True)
class LagDecay:
    """Lag decay: l' = exp(-rate * lag) * l, lag in policy versions.

    It lowers the weight of stale tokens, while `out_of_date_decay` of the trust region drops more of them. The lag is
    per token: an episode that spans an update has tokens of several lags. Normaliser: that of the loss, so a step of
    stale tokens is a smaller step.
    """

    needs: ClassVar[frozenset[str]] = frozenset()

    rate: float = field(default=0.1, validator=validators.ge(0.0))
    """Decay per policy version: at 0.1 a token of lag 7 counts half."""

    def correct(self, batch: LossBatch, output: LossOutput) -> LossOutput:
        """Return the loss with each term multiplied by its decay."""
        import torch

        factor = torch.exp(-self.rate * batch.lag.clamp_min(0).to(output.per_token.dtype))
        return attrs.evolve(
            output,
            per_token=output.per_token * factor,
            metrics={"lag_weight_mean": ((factor * batch.mask).sum(), batch.mask.sum())},
        )
