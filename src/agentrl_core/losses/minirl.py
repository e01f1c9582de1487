"""MiniRL: REINFORCE with the importance ratio as a constant weight, inside a trust region."""

from __future__ import annotations

from typing import ClassVar

import attrs
from attrs import field, validators

from agentrl_core.losses.base import LossBatch, LossOutput
from agentrl_core.losses.trust_region import TrustRegion, importance_ratio, ratio_metrics


@attrs.frozen(kw_only=True)
class MiniRL(TrustRegion):
    """MiniRL as AgentCPM's AgentRL computes it.

        l = -sg(rho) * A * log pi_theta,  rho = exp(log pi_theta - log mu),  sg = stop gradient

    Nothing is clipped; the trust region alone bounds the update, so it is strict by default, with the bounds of
    the paper (arXiv 2512.01374, eq. 7: 0.2 and 0.27). One ratio, against the policy that sampled, is both
    weight and mask; the paper masks by a recomputed old policy and truncates the weight at 5. The paper sums
    over a sequence's tokens without dividing by their number: `aggregation: seq_mean_token_sum`.
    """

    needs: ClassVar[frozenset[str]] = frozenset()

    clip_higher: float = field(default=0.07, validator=validators.ge(0.0))
    strict_in_bound: bool = True

    def loss(self, batch: LossBatch) -> LossOutput:
        """Per-token loss; aggregation and its denominator are the trainer's."""
        ratio = importance_ratio(batch).detach()
        keep = self.keep(batch, ratio)
        return LossOutput(
            per_token=-ratio * batch.advantages * batch.logprobs,
            keep=keep,
            metrics=ratio_metrics(batch, ratio, keep == 0),
        )
