"""Correction that adds a KL penalty, which keeps the policy near a frozen reference policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import attrs
from attrs import field, validators

from agentrl_core.api.losses import LossOutput
from agentrl_core.losses.trust_region import sampling_ratio

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.api.losses import LossBatch


@attrs.frozen(kw_only=True)
class KL:
    """KL penalty: l' = l + beta * KL(pi_theta || pi_ref), estimated on the sampled tokens.

        d = log pi_ref - log pi_theta;  k1 = -d,  k2 = d**2 / 2,  k3 = exp(d) - d - 1

    The estimators are from J. Schulman, "Approximating KL Divergence", 2020; k3 is GRPO's (arXiv 2402.03300, eq. 4).

    In a loss only the estimator's gradient matters. On tokens sampled by the policy itself, the gradient of the
    divergence is the mean of (log pi_theta - log pi_ref) * grad log pi_theta:

    - k2 has this gradient.
    - k1's own gradient is 0 on average. We differ: k1 has the value of k1 and the gradient of k2.
    - k3 has the factor 1 - exp(d) instead: equal near the reference, and at most 1.

    `importance_weight` multiplies by rho = pi_theta / mu, for tokens of an older policy. With k3, rho keeps its
    gradient, which makes k3's gradient exact too (TRL's `use_bias_correction_kl`). With k1 and k2, rho is a constant.

    Tokens that the loss drops get the penalty too. Normaliser: that of the loss, over all loss tokens.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"reference"})

    beta: float = field(default=0.001, validator=validators.ge(0.0))
    """Weight of the penalty. The default is DeepSeek-R1's (arXiv 2501.12948); DeepSeekMath's is 0.04."""
    estimator: Literal["k1", "k2", "k3"] = field(default="k3", validator=validators.in_(("k1", "k2", "k3")))
    """Estimator of the divergence."""
    importance_weight: bool = False
    """Multiply by pi_theta / mu."""

    @property
    def stops_gradient(self) -> bool:
        """True if the gradient is not the derivative of the value."""
        return self.estimator == "k1" or (self.estimator == "k2" and self.importance_weight)

    def correct(self, batch: LossBatch, output: LossOutput) -> LossOutput:
        """Return the loss plus the penalty, for every token of the mask."""
        import torch

        if batch.reference_logprobs is None:
            raise AssertionError("expected batch.reference_logprobs, because `needs` names them; found None")
        divergence = self._estimate(torch.where(batch.mask > 0, batch.reference_logprobs - batch.logprobs, 0.0))
        if self.importance_weight:
            ratio = sampling_ratio(batch)
            divergence = divergence * (ratio if self.estimator == "k3" else ratio.detach())
        # Terms that the loss drops become 0 here, because `keep` becomes the mask: the penalty is for all tokens.
        return LossOutput(
            per_token=output.per_token * output.keep + self.beta * divergence,
            keep=batch.mask,
            metrics={"kl_reference": ((divergence.detach() * batch.mask).sum(), batch.mask.sum())},
        )

    def _estimate(self, difference: Tensor) -> Tensor:
        """Return the estimate for d = log pi_ref - log pi_theta. [N] -> [N]."""
        import torch

        if self.estimator == "k3":
            return torch.exp(difference) - difference - 1
        half_square = difference.square() / 2
        if self.estimator == "k2":
            return half_square
        # k1: the value -d with the gradient of k2.
        return half_square + (-difference - half_square).detach()
