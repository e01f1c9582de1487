"""PPO with a proximal policy of its own: how far to move, told apart from who sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from attrs import field, validators

from agentrl_core.api.losses import LossBatch, LossOutput
from agentrl_core.losses.trust_region import TrustRegion, importance_ratio, log_behaviour_weight, ratio_metrics

if TYPE_CHECKING:
    from torch import Tensor


@attrs.frozen(kw_only=True)
class PPO(TrustRegion):
    """Decoupled PPO, as AReaL trains asynchronously (arXiv 2505.24298; Hilton et al., arXiv 2110.00641).

        l = -w * min(r * A, clip(r, 1 - clip, 1 + clip + clip_higher) * A)
        r = exp(log pi_theta - log pi_prox),  w = exp(log pi_prox - log mu)

    pi_prox is the policy before this step, by `loss.proximal`: one more forward, or interpolated between mu and
    pi_theta without it. The trust region is around pi_prox, so that a sampler that lags behind does not hold the
    policy back; w, a constant, corrects for having sampled with mu. AReaL itself leaves w out unless told otherwise.
    Normaliser: the sum over loss tokens / loss tokens of the whole optimizer update, clipped ones too. Advantage:
    the config's.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"proximal"})
    aggregation_defaults: ClassVar[Mapping[str, Any]] = {"aggregation": "token_mean"}

    dual_clip: float | None = field(default=None, validator=validators.optional(validators.gt(1.0)))
    """Bounds the loss of a negative advantage at this times -A (arXiv 1912.09729; TRL's `delta`)."""
    behaviour_weight: bool = True
    """Multiply by w. False leaves that to a correction, `truncated_is` or `masked_is`."""
    behaviour_weight_cap: float | None = field(default=None, validator=validators.optional(validators.gt(0.0)))
    """Largest w; AReaL's own value is 5."""

    @behaviour_weight_cap.validator
    def _caps_something(self, _attribute: object, value: float | None) -> None:
        if value is not None and not self.behaviour_weight:
            raise ValueError("behaviour_weight_cap bounds a weight that behaviour_weight: false leaves out; remove one")

    @property
    def weighs_behaviour(self) -> bool:
        """Whether pi_prox / mu is in the loss already."""
        return self.behaviour_weight

    def loss(self, batch: LossBatch) -> LossOutput:
        """Per-token loss; aggregation and its denominator are the trainer's."""
        import torch

        ratio, advantages = importance_ratio(batch), batch.advantages
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip + self.clip_higher)
        surrogate = torch.minimum(ratio * advantages, clipped * advantages)
        if self.dual_clip is not None:
            surrogate = torch.where(advantages < 0, torch.maximum(surrogate, self.dual_clip * advantages), surrogate)
        weight = torch.exp(log_behaviour_weight(batch))
        keep = self.keep(batch, ratio)
        metrics = ratio_metrics(batch, ratio, self.beyond(batch, ratio) | (keep == 0))
        return LossOutput(
            per_token=-self._applied(weight) * surrogate,
            keep=keep,
            metrics=metrics | {"behaviour_weight_mean": ((weight * batch.mask).sum(), batch.mask.sum())},
        )

    def _applied(self, weight: Tensor) -> Tensor:
        """What of w the loss is multiplied by. [N]."""
        import torch

        if not self.behaviour_weight:
            return torch.ones_like(weight)
        return weight if self.behaviour_weight_cap is None else weight.clamp(max=self.behaviour_weight_cap)
