"""Protocols for losses and corrections, with their input (`LossBatch`) and output (`LossOutput`).

All tensors are one-dimensional, over the loss tokens of a micro-batch; a calculator never sees padding, packing or
merged prefixes. N loss tokens, S sequences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from torch import Tensor


@attrs.frozen(kw_only=True, eq=False)
class LossBatch:
    """Loss tokens of one micro-batch. All tensors are [N]; log-probabilities and entropies are in nats."""

    logprobs: Tensor
    """log pi_theta of each token, under the policy that is trained; requires grad. Float."""
    behaviour_logprobs: Tensor
    """log mu of each token, computed by the engine at sampling time. Float."""
    advantages: Tensor
    """Advantage of each token. Float."""
    mask: Tensor
    """1.0 where the token counts, else 0.0. Float. Where it is 0, the other fields hold arbitrary finite values:
    replace ratios there (`torch.where`) before `exp`, because inf * 0 is NaN."""
    sequence: Tensor
    """Index in [0, num_sequences) of the sequence that aggregation averages over (`loss.unit`). Long."""
    num_sequences: int
    """S, of this optimizer update on this rank; a micro-batch contains some of them. `aggregation` divides by it; a
    loss must not."""
    record: Tensor
    """Index of the record. Long."""
    group: Tensor
    """Index of the group. Long."""
    lag: Tensor
    """Current policy version minus the version that sampled the token. Long."""
    proximal_logprobs: Tensor | None = None
    """log pi_prox, of the policy before this optimizer step, if the loss or a correction needs it. Float. A loss with a
    ratio takes it against these where they are not None, else against `behaviour_logprobs`."""
    reference_logprobs: Tensor | None = None
    """log pi_ref, of the frozen reference policy, if `needs` names `reference`. Float."""
    entropy: Tensor | None = None
    """Entropy of each token's distribution, with a gradient, if `needs` names `entropy`. Float. Do not read it
    otherwise: it may be None, or detached."""

    def seq_sum(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over the tokens with mask 1 of each sequence. [N] -> [S]."""
        return values.new_zeros(self.num_sequences).index_add(0, self.sequence, values * self.mask)

    def seq_mean(self, values: Tensor) -> Tensor:
        """Return the mean of `values` over the tokens with mask 1 of each sequence; 0 if it has none. [N] -> [S]."""
        return self.seq_sum(values) / self.seq_sum(values.new_ones(len(self.mask))).clamp_min(1.0)

    def expand(self, values: Tensor) -> Tensor:
        """Return each token's sequence value. [S] -> [N]."""
        return values[self.sequence]


@attrs.frozen(kw_only=True, eq=False)
class LossOutput:
    """Per-token loss to minimise, before aggregation."""

    per_token: Tensor
    """Loss of each token. [N]"""
    keep: Tensor
    """Exactly 1.0 for tokens in the loss, 0.0 for tokens that the calculator drops, for example outside a trust region;
    0.0 wherever `mask` is 0. Detached. [N]"""
    metrics: dict[str, tuple[Tensor, Tensor]] = attrs.field(factory=dict)
    """Name -> (sum, count), detached scalar tensors. The trainer adds both over micro-batches and ranks and reports
    `loss/NAME`; `losses.contract` lists the names that are taken."""


class LossCalculator(Protocol):
    """Policy-gradient surrogate. Stateless.

    Its options are the constructor's arguments, except `use`, `aggregation`, `unit`, `horizon`, `corrections`,
    `proximal` and `reference`, which belong to the section `loss`.

    Optional attributes, to be left out if the default is right:

    `aggregation_defaults`: mapping with `aggregation`, `unit` or `horizon` that applies unless the config sets others;
    an attribute of the class, read before the loss is built, like the next.
    `advantage_default`: `advantage` section that applies if the config has none: `{"use": NAME, …}`.
    `stops_gradient`: True if parts of the loss are detached on purpose, so that its gradient differs from the
    derivative of its value.
    `weighs_behaviour`: True if the loss already contains proximal / behaviour, so that no correction may add it.
    `whole_sequences`: True if a token's loss depends on other tokens of its sequence, as with `seq_sum`. A sequence is
    then kept in one micro-batch; otherwise these methods see a part of it.
    """

    @property
    def needs(self) -> frozenset[str]:
        """Optional fields that the loss reads: `proximal` (`proximal_logprobs`), `reference`, `entropy`.

        May be a class attribute.
        """
        ...

    def loss(self, batch: LossBatch) -> LossOutput:
        """Return the loss per token; the trainer aggregates and divides it."""
        ...


class Correction(Protocol):
    """Wrapper of any loss calculator that adds a factor, a mask or a term. Stateless.

    May have the attributes `stops_gradient` and `whole_sequences` of a calculator, and `weighs_behaviour`: True if it
    multiplies by proximal / behaviour.
    """

    @property
    def needs(self) -> frozenset[str]:
        """Optional fields that the correction reads, like `LossCalculator.needs`."""
        ...

    def correct(self, batch: LossBatch, output: LossOutput) -> LossOutput:
        """Return the loss to minimise instead of `output`. Metrics of `output` are kept; return only new ones."""
        ...
