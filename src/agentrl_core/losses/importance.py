"""Corrections for off-policy samples: truncated or masked importance sampling with w = proximal / behaviour.

Engine and learner round differently, and a sampler may lag behind; w measures both. With one of these corrections the
loss takes its own ratio against the proximal policy, so that w counts once. N loss tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import attrs
from attrs import field, validators

from agentrl_core.losses.trust_region import log_behaviour_weight

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.api.losses import LossBatch, LossOutput

Level: TypeAlias = Literal["token", "sequence", "geometric"]


@attrs.frozen(kw_only=True)
class _Weight:
    """Base class that computes the weight w, per token or per sequence."""

    needs: ClassVar[frozenset[str]] = frozenset({"proximal"})

    level: Level = field(default="token", validator=validators.in_(("token", "sequence", "geometric")))
    """Unit of the weight. `token`: each token's own. `sequence`: the product over a sequence's tokens. `geometric`:
    their geometric mean."""

    @property
    def whole_sequences(self) -> bool:
        """True if the weight depends on all tokens of a sequence."""
        return self.level != "token"

    def weight(self, batch: LossBatch) -> Tensor:
        """Compute w of each token, 1 where the mask is 0; no gradient. [N]."""
        import torch

        log = log_behaviour_weight(batch).detach()
        if self.level == "sequence":
            log = batch.expand(batch.seq_sum(log))
        elif self.level == "geometric":
            log = batch.expand(batch.seq_mean(log))
        return torch.exp(log)


@attrs.frozen(kw_only=True)
class TruncatedIS(_Weight):
    """Truncated importance sampling: l' = min(w, cap) * l.

    w = exp(log pi_prox - log mu), as in TIS (fengyao.notion.site/off-policy-rl), TRL, slime and verl. Normaliser: that
    of the loss; a token with a small weight counts as a whole token there.
    """

    weighs_behaviour: ClassVar[bool] = True

    cap: float = field(default=2.0, validator=validators.gt(0.0))
    """Largest weight; 2 is the value of TIS, TRL's default is 3."""

    def correct(self, batch: LossBatch, output: LossOutput) -> LossOutput:
        """Return the loss with each term multiplied by its truncated weight."""
        weight = self.weight(batch)
        return attrs.evolve(
            output,
            per_token=output.per_token * weight.clamp(max=self.cap),
            metrics=_metrics(batch, weight, weight > self.cap),
        )


@attrs.frozen(kw_only=True)
class MaskedIS(_Weight):
    """Masked importance sampling: l' = w * 1[low <= w <= high] * l; `weighted: false` omits the factor w.

    w = exp(log pi_prox - log mu). Per token this is IcePop's rule (arXiv 2510.18855), with its bounds as defaults. With
    `level: geometric` and narrow bounds it is the sequence rejection of AReaL and verl. Normaliser: that of the loss; a
    masked token still counts in it, except with `agentcpm_rows`.
    """

    low: float = field(default=0.5, validator=validators.ge(0.0))
    """Smallest weight of a trained token."""
    high: float = field(default=5.0, validator=validators.gt(0.0))
    """Largest weight of a trained token."""
    weighted: bool = True
    """Multiply kept terms by w; False only rejects."""

    @high.validator
    def _above_low(self, _attribute: object, value: float) -> None:
        if value < self.low:
            raise ValueError(f"high must be at least low, found low {self.low} and high {value}")

    @property
    def weighs_behaviour(self) -> bool:
        """True if w is a factor of the loss."""
        return self.weighted

    def correct(self, batch: LossBatch, output: LossOutput) -> LossOutput:
        """Return the loss without the terms outside the bounds, and the other terms multiplied by w."""
        import torch

        weight = self.weight(batch)
        inside = (weight >= self.low) & (weight <= self.high)
        # The product over a long sequence may be infinite. It is outside the bounds; inf * 0 would be NaN.
        factor = torch.where(inside, weight, 0.0) if self.weighted else torch.ones_like(weight)
        # A weight outside the bounds may be infinite, so the metric's mean counts it as 1.
        return attrs.evolve(
            output,
            per_token=output.per_token * factor,
            keep=output.keep * inside.to(output.keep.dtype),
            metrics=_metrics(batch, weight.where(inside, 1.0), ~inside),
        )


def _metrics(batch: LossBatch, weight: Tensor, cut: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the mean weight and the share of tokens with a cut weight, as (sum, count) over the masked tokens."""
    count = batch.mask.sum()
    return {
        "behaviour_weight_mean": ((weight * batch.mask).sum(), count),
        "behaviour_weight_cut_fraction": ((cut.to(batch.mask.dtype) * batch.mask).sum(), count),
    }
