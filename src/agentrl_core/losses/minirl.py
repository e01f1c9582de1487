"""MiniRL: REINFORCE weighted by a detached importance ratio within a trust region, in two forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
from attrs import field, validators

from agentrl_core.api.losses import LossBatch, LossOutput
from agentrl_core.losses.trust_region import TrustRegion, importance_ratio, ratio_metrics, sampling_ratio


@attrs.frozen(kw_only=True)
class MiniRL(TrustRegion):
    """MiniRL as AgentCPM's AgentRL (another project) computes it; `minirl_paper` is the paper's form.

        l = -sg(rho) * A * log pi_theta,  rho = exp(log pi_theta - log mu),  sg = stop gradient

    Nothing is clipped. Only the trust region bounds the update, so it is strict by default, with the paper's bounds
    (arXiv 2512.01374, eq. 7: 0.2 and 0.27). We differ from the paper: one ratio, against the behaviour policy, is both
    weight and mask. Normaliser: mean over sequences of each sequence's token sum (not divided by its number of tokens),
    as in the paper and with the recommended flags of AgentRL. Advantage: `grpo` with `std: false`.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    aggregation_defaults: ClassVar[Mapping[str, Any]] = {"aggregation": "seq_mean_token_sum"}
    advantage_default: ClassVar[Mapping[str, Any]] = {"use": "grpo", "std": False}
    stops_gradient: ClassVar[bool] = True

    clip_higher: float = field(default=0.07, validator=validators.ge(0.0))
    strict_in_bound: bool = True

    def loss(self, batch: LossBatch) -> LossOutput:
        """Return the loss per token [N]; the trainer aggregates and divides it."""
        ratio = importance_ratio(batch).detach()
        keep = self.keep(batch, ratio)
        return LossOutput(
            per_token=-ratio * batch.advantages * batch.logprobs,
            keep=keep,
            metrics=ratio_metrics(batch, ratio, keep == 0),
        )


@attrs.frozen(kw_only=True)
class MiniRLPaper(MiniRL):
    """MiniRL as in its paper (arXiv 2512.01374, eq. 7).

        l = -M * sg(min(rho, weight_cap)) * A * log pi_theta,  rho = exp(log pi_theta - log mu)
        M = 0 where A > 0 and r > 1 + clip + clip_higher, or A < 0 and r < 1 - clip, else 1
        r = exp(log pi_theta - log pi_prox)

    The truncated weight rho corrects for all differences between behaviour policy and current policy: engine mismatch
    and lag. The mask M bounds how far the learner itself has moved since the step began (`loss.proximal`). Normaliser:
    mean over sequences of each sequence's token sum. Advantage: `grpo` with `std: false`.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"proximal"})
    weighs_behaviour: ClassVar[bool] = True

    weight_cap: float = field(default=5.0, validator=validators.ge(1.0))
    """Largest weight; the paper's value."""

    def loss(self, batch: LossBatch) -> LossOutput:
        """Return the loss per token [N]; the trainer aggregates and divides it."""
        # With `needs` "proximal", `importance_ratio` is against pi_prox; `sampling_ratio` is always against mu.
        weight, ratio = sampling_ratio(batch).detach(), importance_ratio(batch).detach()
        keep, count = self.keep(batch, ratio), batch.mask.sum()
        truncated = (weight > self.weight_cap).to(batch.mask.dtype)
        return LossOutput(
            per_token=-weight.clamp(max=self.weight_cap) * batch.advantages * batch.logprobs,
            keep=keep,
            metrics=ratio_metrics(batch, ratio, keep == 0)
            | {"weight_truncated_fraction": ((truncated * batch.mask).sum(), count)},
        )
