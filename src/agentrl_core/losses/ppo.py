"""Decoupled PPO: the trust region is around the proximal policy, apart from the behaviour policy that sampled."""

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
    """Decoupled PPO for asynchronous training, as in AReaL (arXiv 2505.24298; Hilton et al., arXiv 2110.00641).

        l = -w * min(r * A, clip(r, 1 - clip, 1 + clip + clip_higher) * A)
        r = exp(log pi_theta - log pi_prox),  w = exp(log pi_prox - log mu)

    pi_prox is the policy before this step; `loss.proximal` says whether one more forward pass computes it, or an
    interpolation between mu and pi_theta. The trust region is around pi_prox, so a sampler that lags behind does not
    hold the policy back. The weight w has no gradient and corrects for sampling with mu. We differ: AReaL omits w by
    default. Normaliser: sum over loss tokens / number of loss tokens of the whole optimizer update, including clipped
    ones. Advantage: the config's.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"proximal"})
    aggregation_defaults: ClassVar[Mapping[str, Any]] = {"aggregation": "token_mean"}

    dual_clip: float | None = field(default=None, validator=validators.optional(validators.gt(1.0)))
    """Largest loss for a negative advantage, in multiples of -A (arXiv 1912.09729; TRL's `delta`). None: no bound."""
    behaviour_weight: bool = True
    """Multiply by w. Set it to False to use a correction instead: `truncated_is` or `masked_is`."""
    behaviour_weight_cap: float | None = field(default=None, validator=validators.optional(validators.gt(0.0)))
    """Largest w; AReaL's value is 5. None: unlimited."""

    @behaviour_weight_cap.validator
    def _caps_something(self, _attribute: object, value: float | None) -> None:
        if value is not None and not self.behaviour_weight:
            raise ValueError("behaviour_weight_cap bounds a weight that behaviour_weight: false omits; remove one")

    @property
    def weighs_behaviour(self) -> bool:
        """True if the loss contains pi_prox / mu."""
        return self.behaviour_weight

    def loss(self, batch: LossBatch) -> LossOutput:
        """Return the loss per token [N]; the trainer aggregates and divides it."""
        import torch

        ratio, advantages = importance_ratio(batch), batch.advantages
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip + self.clip_higher)
        surrogate = torch.minimum(ratio * advantages, clipped * advantages)
        # With A < 0 the surrogate has no lower bound as the ratio grows.
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
        """Return the factor of the loss: w, w up to its cap, or 1. [N]."""
        import torch

        if not self.behaviour_weight:
            return torch.ones_like(weight)
        return weight if self.behaviour_weight_cap is None else weight.clamp(max=self.behaviour_weight_cap)
