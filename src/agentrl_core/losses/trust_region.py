"""Importance ratios, and the trust region that several policy-gradient losses share.

A ratio compares the policy pi_theta with an anchor: the proximal policy if the batch has its log-probabilities (because
the loss or a correction needs them), else the behaviour policy mu. N loss tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from attrs import field, validators

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.api.losses import LossBatch


@attrs.frozen(kw_only=True)
class TrustRegion:
    """Bounds on the importance ratio rho = exp(log pi_theta - log anchor).

    A token is dropped from the loss if rho has moved further than allowed in the direction of its advantage A:

        keep = not ((A > 0 and rho > 1 + (clip + clip_higher) * c * d) or (A < 0 and rho < 1 - clip * c * d))

    c is `importance_weight_cap_ratio`. d is 1/c with `strict_in_bound`, else exp(-lag * out_of_date_decay) if that is
    set, else 1. Without a cap and without `strict_in_bound` every token is kept. This is the mask of AgentCPM's AgentRL
    (another project), whose defaults are clip 0.2, clip_higher 0.1 and a cap of 4.
    """

    clip: float = field(default=0.2, validator=[validators.gt(0.0), validators.lt(1.0)])
    """Allowed decrease of the ratio below 1."""
    clip_higher: float = field(default=0.0, validator=validators.ge(0.0))
    """Added to `clip` for the allowed increase above 1 (DAPO's clip-higher)."""
    importance_weight_cap_ratio: float | None = field(default=None, validator=validators.optional(validators.gt(0.0)))
    """Width of the kept region in multiples of the clip bounds; None keeps every token unless `strict_in_bound`."""
    strict_in_bound: bool = False
    """Drop every token beyond the clip bounds themselves; overrides `out_of_date_decay`."""
    out_of_date_decay: float | None = field(default=None, validator=validators.optional(validators.ge(0.0)))
    """Narrow the region by a factor exp(-decay) per policy version of lag; requires `importance_weight_cap_ratio`."""

    @out_of_date_decay.validator
    def _decays_something(self, _attribute: object, value: float | None) -> None:
        if value is not None and self.importance_weight_cap_ratio is None:
            raise ValueError(
                "out_of_date_decay narrows the region of importance_weight_cap_ratio, which is not set; set it too "
                "(AgentCPM's AgentRL uses 4.0), or remove out_of_date_decay"
            )

    def keep(self, batch: LossBatch, ratio: Tensor) -> Tensor:
        """Return 1.0 for tokens of the mask inside the region, else 0.0; no gradient. [N]."""
        import torch

        if self.strict_in_bound:
            width = torch.ones_like(ratio)
        elif self.importance_weight_cap_ratio is None:
            return batch.mask
        else:
            decay = self.out_of_date_decay or 0.0
            width = self.importance_weight_cap_ratio * torch.exp(-decay * batch.lag.clamp_min(0).to(ratio.dtype))
        return batch.mask * (~self.beyond(batch, ratio, width=width)).to(batch.mask.dtype)

    def beyond(self, batch: LossBatch, ratio: Tensor, *, width: Tensor | float = 1.0) -> Tensor:
        """Return where the ratio exceeds `width` times its clip bound in the advantage's direction. Bool. [N]."""
        ratio = ratio.detach()
        too_high = (batch.advantages > 0) & (ratio > 1 + (self.clip + self.clip_higher) * width)
        too_low = (batch.advantages < 0) & (ratio < 1 - self.clip * width)
        return too_high | too_low


def anchor(batch: LossBatch) -> Tensor:
    """Return the log-probabilities that ratios are taken against: proximal, else behaviour; no gradient. [N]."""
    return batch.behaviour_logprobs if batch.proximal_logprobs is None else batch.proximal_logprobs


def log_ratio(batch: LossBatch) -> Tensor:
    """Compute log pi_theta - log anchor of each token; 0 and without gradient where the mask is 0. [N]."""
    import torch

    return torch.where(batch.mask > 0, batch.logprobs - anchor(batch), 0.0)


def importance_ratio(batch: LossBatch) -> Tensor:
    """Compute pi_theta / anchor of each token; 1 and without gradient where the mask is 0. [N]."""
    import torch

    return torch.exp(log_ratio(batch))


def sampling_ratio(batch: LossBatch) -> Tensor:
    """Compute pi_theta / mu of each token, for any anchor; 1 and without gradient where the mask is 0. [N]."""
    import torch

    return torch.exp(torch.where(batch.mask > 0, batch.logprobs - batch.behaviour_logprobs, 0.0))


def log_behaviour_weight(batch: LossBatch) -> Tensor:
    """Compute log anchor - log mu of each token, which a ratio to the anchor omits; 0 where the mask is 0. [N]."""
    import torch

    return torch.where(batch.mask > 0, anchor(batch) - batch.behaviour_logprobs, 0.0)


def ratio_metrics(batch: LossBatch, ratio: Tensor, cut: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the share of clipped tokens (`cut`, bool [N]) and the mean ratio, as (sum, count) over the masked tokens.

    The share is also given separately for tokens with positive and with negative advantages.
    """
    clipped = cut.to(batch.mask.dtype) * batch.mask
    above, below = (batch.advantages > 0).to(batch.mask.dtype), (batch.advantages < 0).to(batch.mask.dtype)
    return {
        "clip_fraction": (clipped.sum(), batch.mask.sum()),
        "clip_fraction_positive": ((clipped * above).sum(), (batch.mask * above).sum()),
        "clip_fraction_negative": ((clipped * below).sum(), (batch.mask * below).sum()),
        "ratio_mean": ((ratio.detach() * batch.mask).sum(), batch.mask.sum()),
    }
