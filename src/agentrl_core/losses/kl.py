"""A correction that holds the policy near a reference: the KL divergence as a term of the loss."""

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
    """l' = l + beta * KL(pi_theta || pi_ref), estimated on the sampled tokens (J. Schulman, "Approximating KL", 2020).

        d = log pi_ref - log pi_theta;  k1 = -d,  k2 = d**2 / 2,  k3 = exp(d) - d - 1  (GRPO, arXiv 2402.03300, eq. 4)

    As a loss term an estimator matters by its gradient, and that of the divergence is (log pi_theta - log pi_ref) *
    grad log pi_theta on tokens of the policy itself. k2 has it. k1 by itself has a gradient without direction, so it
    takes k2's here. k3 has 1 - exp(d): the same near the reference, and bounded above it.
    `importance_weight` multiplies by rho = pi_theta / mu, for tokens of an older policy. k3 takes the gradient of rho
    along, which makes its own exact too (TRL's `use_bias_correction_kl`); to k1 and k2 rho is a constant.

    Tokens that the loss dropped are held as well. Normaliser: the loss's own, over all loss tokens.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"reference"})

    beta: float = field(default=0.001, validator=validators.ge(0.0))
    """Weight of the term; DeepSeek-R1's value (arXiv 2501.12948), DeepSeekMath's is 0.04."""
    estimator: Literal["k1", "k2", "k3"] = field(default="k3", validator=validators.in_(("k1", "k2", "k3")))
    importance_weight: bool = False

    @property
    def stops_gradient(self) -> bool:
        """Whether value and gradient are put together from two parts."""
        return self.estimator == "k1" or (self.estimator == "k2" and self.importance_weight)

    def correct(self, batch: LossBatch, output: LossOutput) -> LossOutput:
        """Add the term."""
        import torch

        if batch.reference_logprobs is None:
            raise AssertionError("reference log-probs were asked for")
        divergence = self._estimate(torch.where(batch.mask > 0, batch.reference_logprobs - batch.logprobs, 0.0))
        if self.importance_weight:
            ratio = sampling_ratio(batch)
            divergence = divergence * (ratio if self.estimator == "k3" else ratio.detach())
        return LossOutput(
            per_token=output.per_token * output.keep + self.beta * divergence,
            keep=batch.mask,
            metrics={"kl_reference": ((divergence.detach() * batch.mask).sum(), batch.mask.sum())},
        )

    def _estimate(self, difference: Tensor) -> Tensor:
        """One of the estimators, of d. [N]."""
        import torch

        if self.estimator == "k3":
            return torch.exp(difference) - difference - 1
        half_square = difference.square() / 2
        if self.estimator == "k2":
            return half_square
        return half_square + (-difference - half_square).detach()
