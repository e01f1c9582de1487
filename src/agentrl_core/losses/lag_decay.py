"""A correction for stale tokens: the older the policy that sampled one, the less it counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs
from attrs import field, validators

if TYPE_CHECKING:
    from agentrl_core.api.losses import LossBatch, LossOutput


@attrs.frozen(kw_only=True)
class LagDecay:
    """l' = exp(-rate * lag) * l, lag in policy versions.

    Where `out_of_date_decay` of the trust region narrows what may pass, this lowers the weight of what does. Tokens
    of one episode that was sampled across an update have lags of their own. Normaliser: the loss's own, so that a
    step of stale tokens is a smaller step.
    """

    needs: ClassVar[frozenset[str]] = frozenset()

    rate: float = field(default=0.1, validator=validators.ge(0.0))
    """Per version: at 0.1 a token of lag 7 counts half."""

    def correct(self, batch: LossBatch, output: LossOutput) -> LossOutput:
        """Multiply each term."""
        import torch

        factor = torch.exp(-self.rate * batch.lag.clamp_min(0).to(output.per_token.dtype))
        return attrs.evolve(
            output,
            per_token=output.per_token * factor,
            metrics={"lag_weight_mean": ((factor * batch.mask).sum(), batch.mask.sum())},
        )
