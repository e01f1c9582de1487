"""GRPO: PPO's clipped surrogate with group-relative advantages."""

from __future__ import annotations

from typing import ClassVar

import attrs

from agentrl_core.api.losses import LossBatch, LossOutput
from agentrl_core.losses.trust_region import TrustRegion, importance_ratio, ratio_metrics


@attrs.frozen(kw_only=True)
class GRPO(TrustRegion):
    """DeepSeekMath's objective without the KL term (arXiv 2402.03300, eq. 3), with PPO's clip (arXiv 1707.06347).

        l = -min(rho * A, clip(rho, 1 - clip, 1 + clip + clip_higher) * A),  rho = exp(log pi_theta - log mu)

    mu is the policy that sampled the token, by the engine's log-probabilities. If a correction needs the proximal
    policy, rho is taken against that policy instead. Normaliser: the config's `aggregation`; by default sum over loss
    tokens / number of loss tokens of the whole optimizer update (DAPO); `seq_mean_token_mean` is the paper's. The
    options of the trust region drop tokens in addition to the clip. For the paper's KL term add the correction `kl`.
    """

    needs: ClassVar[frozenset[str]] = frozenset()

    def loss(self, batch: LossBatch) -> LossOutput:
        """Return the loss per token [N]; the trainer aggregates and divides it."""
        import torch

        ratio = importance_ratio(batch)
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip + self.clip_higher)
        keep = self.keep(batch, ratio)
        return LossOutput(
            per_token=-torch.minimum(ratio * batch.advantages, clipped * batch.advantages),
            keep=keep,
            metrics=ratio_metrics(batch, ratio, self.beyond(batch, ratio) | (keep == 0)),
        )
