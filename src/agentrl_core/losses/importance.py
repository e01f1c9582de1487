"""Corrections for having sampled with another policy than the proximal one: a weight, truncated or masked.

Engine and learner round differently, and a sampler may lag behind: w = proximal / behaviour tells by how much. The
loss's own ratio is then taken against the proximal policy, so that w counts once. N loss tokens.
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
    """What both have in common: w, per token or of the whole sequence."""

    needs: ClassVar[frozenset[str]] = frozenset({"proximal"})

    level: Level = field(default="token", validator=validators.in_(("token", "sequence", "geometric")))
    """`token`: of each token. `sequence`: the product over a sequence's tokens. `geometric`: their geometric mean."""

    @property
    def whole_sequences(self) -> bool:
        """A sequence's weight is that of all of its tokens."""
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

    w = exp(log pi_prox - log mu), as fengyao.notion.site/off-policy-rl has it (TIS) and TRL, slime and verl compute
    it. Normaliser: the loss's own; a small weight does not count for less there.
    """

    weighs_behaviour: ClassVar[bool] = True

    cap: float = field(default=2.0, validator=validators.gt(0.0))
    """Largest weight; 2 is the value of the text above, TRL's own is 3."""

    def correct(self, batch: LossBatch, output: LossOutput) -> LossOutput:
        """Multiply each term."""
        weight = self.weight(batch)
        return attrs.evolve(
            output,
            per_token=output.per_token * weight.clamp(max=self.cap),
            metrics=_metrics(batch, weight, weight > self.cap),
        )


@attrs.frozen(kw_only=True)
class MaskedIS(_Weight):
    """Masked importance sampling: l' = w * 1[low <= w <= high] * l, or without the factor w.

    w = exp(log pi_prox - log mu). IcePop's rule per token (arXiv 2510.18855, its bounds are the defaults); with
    `level: geometric` and narrow bounds the sequence rejection of AReaL and verl. A masked token stays in the
    normaliser, except in `agentcpm_rows`.
    """

    low: float = field(default=0.5, validator=validators.ge(0.0))
    """Smallest weight that trains."""
    high: float = field(default=5.0, validator=validators.gt(0.0))
    """Largest weight that trains."""
    weighted: bool = True
    """Whether what is kept is multiplied by w; False only rejects."""

    @high.validator
    def _above_low(self, _attribute: object, value: float) -> None:
        if value < self.low:
            raise ValueError(f"high must be at least low, found low {self.low} and high {value}")

    @property
    def weighs_behaviour(self) -> bool:
        """Whether w is a factor."""
        return self.weighted

    def correct(self, batch: LossBatch, output: LossOutput) -> LossOutput:
        """Drop the terms outside of the bounds, and multiply the others."""
        import torch

        weight = self.weight(batch)
        inside = (weight >= self.low) & (weight <= self.high)
        # A product over a long sequence may be infinite; it is outside, and must not meet a zero.
        factor = torch.where(inside, weight, 0.0) if self.weighted else torch.ones_like(weight)
        return attrs.evolve(
            output,
            per_token=output.per_token * factor,
            keep=output.keep * inside.to(output.keep.dtype),
            metrics=_metrics(batch, weight.where(inside, 1.0), ~inside),
        )


def _metrics(batch: LossBatch, weight: Tensor, cut: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """The mean weight, and the share of tokens whose weight was cut."""
    count = batch.mask.sum()
    return {
        "behaviour_weight_mean": ((weight * batch.mask).sum(), count),
        "behaviour_weight_cut_fraction": ((cut.to(batch.mask.dtype) * batch.mask).sum(), count),
    }
