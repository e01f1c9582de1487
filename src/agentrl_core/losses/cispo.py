"""CISPO: REINFORCE with a clipped importance weight; no token loses its gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
from attrs import field, validators

from agentrl_core.api.losses import LossBatch, LossOutput
from agentrl_core.losses.trust_region import importance_ratio, ratio_metrics


@attrs.frozen(kw_only=True)
class CISPO:
    """CISPO of MiniMax-M1 (arXiv 2506.13585, eq. 4 and 5).

        l = -sg(min(rho, cap)) * A * log pi_theta,  rho = exp(log pi_theta - log mu),  sg = stop gradient

    Every token keeps a gradient, also rare tokens that a clipped surrogate would drop. As in the paper's experiments
    the weight has no lower bound. `cap` bounds the weight itself, not its distance from 1 (TRL's `epsilon_high`).
    Normaliser: sum over loss tokens / number of loss tokens of the whole optimizer update. Advantage: `grpo`.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    aggregation_defaults: ClassVar[Mapping[str, Any]] = {"aggregation": "token_mean"}
    stops_gradient: ClassVar[bool] = True

    cap: float = field(default=5.0, validator=validators.ge(1.0))
    """Largest weight. The paper gives no value; ScaleRL found 5 best (arXiv 2510.13786)."""

    def loss(self, batch: LossBatch) -> LossOutput:
        """Return the loss per token [N]; the trainer aggregates and divides it."""
        ratio = importance_ratio(batch).detach()
        return LossOutput(
            per_token=-ratio.clamp(max=self.cap) * batch.advantages * batch.logprobs,
            keep=batch.mask,
            metrics=ratio_metrics(batch, ratio, ratio > self.cap),
        )
