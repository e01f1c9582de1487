"""MiniRL: REINFORCE with the importance ratio as a constant weight, inside a trust region."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
from attrs import field, validators

from agentrl_core.api.losses import LossBatch, LossOutput
from agentrl_core.losses.trust_region import TrustRegion, importance_ratio, ratio_metrics, sampling_ratio


@attrs.frozen(kw_only=True)
class MiniRL(TrustRegion):
    """MiniRL as AgentCPM's AgentRL computes it.

        l = -sg(rho) * A * log pi_theta,  rho = exp(log pi_theta - log mu),  sg = stop gradient

    Nothing is clipped; the trust region alone bounds the update, so it is strict by default, with the bounds of
    the paper (arXiv 2512.01374, eq. 7: 0.2 and 0.27). One ratio, against the policy that sampled, is both
    weight and mask; `minirl_paper` is the paper's own form. Normaliser: the mean over sequences of each one's token
    sum, not divided by their number, as the paper and the recommended flags of AgentCPM's AgentRL have it. Advantage:
    `grpo` with `std: false`.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    aggregation_defaults: ClassVar[Mapping[str, Any]] = {"aggregation": "seq_mean_token_sum"}
    advantage_default: ClassVar[Mapping[str, Any]] = {"use": "grpo", "std": False}
    stops_gradient: ClassVar[bool] = True

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


@attrs.frozen(kw_only=True)
class MiniRLPaper(MiniRL):
    """MiniRL as its paper has it (arXiv 2512.01374, eq. 7).

        l = -M * sg(min(rho, weight_cap)) * A * log pi_theta,  rho = exp(log pi_theta - log mu)
        M = 0 where A > 0 and r > 1 + clip + clip_higher, or A < 0 and r < 1 - clip, else 1
        r = exp(log pi_theta - log pi_prox)

    The weight corrects for everything between sampler and policy, engine mismatch and lag, and is truncated; the mask
    bounds what the learner itself has moved since the step began (`loss.proximal`). Normaliser: the mean over
    sequences of each one's token sum. Advantage: `grpo` with `std: false`.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"proximal"})
    weighs_behaviour: ClassVar[bool] = True

    weight_cap: float = field(default=5.0, validator=validators.ge(1.0))
    """Largest weight; the paper's value."""

    def loss(self, batch: LossBatch) -> LossOutput:
        """Per-token loss; aggregation and its denominator are the trainer's."""
        weight, ratio = sampling_ratio(batch).detach(), importance_ratio(batch).detach()
        keep, count = self.keep(batch, ratio), batch.mask.sum()
        truncated = (weight > self.weight_cap).to(batch.mask.dtype)
        return LossOutput(
            per_token=-weight.clamp(max=self.weight_cap) * batch.advantages * batch.logprobs,
            keep=keep,
            metrics=ratio_metrics(batch, ratio, keep == 0)
            | {"weight_truncated_fraction": ((truncated * batch.mask).sum(), count)},
        )
