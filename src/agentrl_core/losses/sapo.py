"""SAPO: GRPO with a smooth sigmoid gate on the importance ratio instead of a clip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from attrs import field, validators

from agentrl_core.api.losses import LossBatch, LossOutput
from agentrl_core.losses.trust_region import importance_ratio, ratio_metrics

if TYPE_CHECKING:
    from torch import Tensor


@attrs.frozen(kw_only=True)
class SAPO:
    """Soft adaptive policy optimization (arXiv 2511.20347).

        l = -(4 / tau) * sigmoid(tau * (rho - 1)) * A,  tau = tau_positive where A > 0, else tau_negative

    The gradient with respect to rho is weighted by 4 p (1 - p), where p is the sigmoid: 1 at rho = 1, and falling on
    both sides, faster for negative advantages. Normaliser: mean over sequences of each sequence's token mean.
    Advantage: `grpo`.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    aggregation_defaults: ClassVar[Mapping[str, Any]] = {"aggregation": "seq_mean_token_mean"}

    tau_positive: float = field(default=1.0, validator=validators.gt(0.0))
    """Steepness of the gate for tokens with a positive advantage."""
    tau_negative: float = field(default=1.05, validator=validators.gt(0.0))
    """Steepness of the gate for all other tokens."""

    def loss(self, batch: LossBatch) -> LossOutput:
        """Return the loss per token [N]; the trainer aggregates and divides it."""
        import torch

        ratio = importance_ratio(batch)
        tau = torch.where(batch.advantages > 0, self.tau_positive, self.tau_negative).to(ratio.dtype)
        gate = torch.sigmoid(tau * (ratio - 1))
        return LossOutput(
            per_token=-4 / tau * gate * batch.advantages,
            keep=batch.mask,
            metrics=_metrics(batch, ratio, gate),
        )


def _metrics(batch: LossBatch, ratio: Tensor, gate: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the ratio metrics, with a clip fraction of 0, and `gate_mean`, the mean weight 4 p (1 - p)."""
    import torch

    open_share = 4 * gate.detach() * (1 - gate.detach())
    metrics = ratio_metrics(batch, ratio, torch.zeros_like(batch.mask, dtype=torch.bool))
    return metrics | {"gate_mean": ((open_share * batch.mask).sum(), batch.mask.sum())}
