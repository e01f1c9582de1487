"""GSPO: GRPO with one importance ratio and one clip decision per sequence instead of per token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
from attrs import field, validators

from agentrl_core.api.losses import LossBatch, LossOutput
from agentrl_core.losses.trust_region import TrustRegion, log_ratio, ratio_metrics


@attrs.frozen(kw_only=True)
class GSPO(TrustRegion):
    """Group sequence policy optimization (arXiv 2507.18071, eq. 5 and 7, in its token form).

        l = -min(s * A, clip(s, 1 - clip, 1 + clip + clip_higher) * A)
        s = sg(s_i) * exp(log pi_theta - sg(log pi_theta)),  s_i = exp(mean over the sequence of log pi_theta - log mu)

    sg stops the gradient. Each token's ratio has its sequence's value and the gradient of its own log-probability, so
    the mean over a sequence has exactly the gradient of s_i. `loss.unit` says what a sequence is. We differ from
    AgentCPM's AgentRL, which writes log pi / sg(log pi) in place of the exponential; its gradient has the wrong sign.
    Normaliser: mean over sequences of each sequence's token mean. The clip bounds are the paper's: 3e-4 down, 4e-4 up.
    Advantage: `grpo`.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    aggregation_defaults: ClassVar[Mapping[str, Any]] = {"aggregation": "seq_mean_token_mean"}
    whole_sequences: ClassVar[bool] = True

    clip: float = field(default=3e-4, validator=[validators.gt(0.0), validators.lt(1.0)])
    clip_higher: float = field(default=1e-4, validator=validators.ge(0.0))

    def loss(self, batch: LossBatch) -> LossOutput:
        """Return the loss per token [N]; the trainer aggregates and divides it."""
        import torch

        of_sequence = batch.expand(batch.seq_mean(log_ratio(batch))).detach()
        own = torch.where(batch.mask > 0, batch.logprobs - batch.logprobs.detach(), 0.0)
        # `own` is 0: the ratio has the sequence's value, and the gradient of the token's log-probability.
        ratio = torch.exp(of_sequence + own)
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip + self.clip_higher)
        keep = self.keep(batch, ratio)
        return LossOutput(
            per_token=-torch.minimum(ratio * batch.advantages, clipped * batch.advantages),
            keep=keep,
            metrics=ratio_metrics(batch, ratio, self.beyond(batch, ratio) | (keep == 0)),
        )
