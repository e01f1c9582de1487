"""What a loss calculator sees and returns: one-dimensional tensors over the loss tokens of a micro-batch.

N loss tokens, S sequences. Merged, packed or padded, the calculator sees the same numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from torch import Tensor


@attrs.frozen(kw_only=True, eq=False)
class LossBatch:
    """The loss tokens of one micro-batch. All tensors are [N] unless said otherwise."""

    logprobs: Tensor
    """log pi_theta of each token; requires grad. Float."""
    behaviour_logprobs: Tensor
    """log mu: by the engine, at sampling time. Float."""
    advantages: Tensor
    """Per token. Float."""
    mask: Tensor
    """1.0 where the token counts, else 0.0. Float."""
    sequence: Tensor
    """Index in [0, num_sequences) of the sequence that aggregation averages over, by `loss.unit`. Long."""
    num_sequences: int
    record: Tensor
    """Index of the record. Long."""
    group: Tensor
    """Index of the group. Long."""
    lag: Tensor
    """Current policy version minus the token's. Long."""
    proximal_logprobs: Tensor | None = None
    """log pi of the learner before this optimizer step, where the calculator needs it."""
    reference_logprobs: Tensor | None = None
    entropy: Tensor | None = None

    def seq_sum(self, values: Tensor) -> Tensor:
        """Sum of `values` over the masked tokens of each sequence. [N] -> [S]."""
        return values.new_zeros(self.num_sequences).index_add(0, self.sequence, values * self.mask)

    def seq_mean(self, values: Tensor) -> Tensor:
        """Mean of `values` over the masked tokens of each sequence; 0 for a sequence without any. [N] -> [S]."""
        return self.seq_sum(values) / self.seq_sum(values.new_ones(len(self.mask))).clamp_min(1.0)

    def expand(self, values: Tensor) -> Tensor:
        """Give each token its sequence's value. [S] -> [N]."""
        return values[self.sequence]


@attrs.frozen(kw_only=True, eq=False)
class LossOutput:
    """What to minimise, before aggregation."""

    per_token: Tensor
    """[N]"""
    keep: Tensor
    """1.0 for tokens in the loss, 0.0 for those that the calculator drops (a trust region, say); within `mask`. [N]"""
    metrics: dict[str, tuple[Tensor, Tensor]] = attrs.field(factory=dict)
    """name -> (sum, count), reduced by the trainer over micro-batches and ranks, and reported as `loss/NAME`."""


class LossCalculator(Protocol):
    """A policy-gradient surrogate. Stateless; options are its constructor's arguments.

    Attributes that a calculator may have beside these, each left out where the default holds:

    `aggregation_defaults`: options of `AggregationConfig` that hold unless the config says otherwise.
    `advantage_default`: the `advantage` section that holds where the config has none: `{"use": NAME, …}`.
    `stops_gradient`: True where parts of the loss are constants on purpose, so that its gradient is not the slope of
    its value.
    `weighs_behaviour`: True where the loss contains proximal / behaviour already, so that no correction may add it.
    `whole_sequences`: True where a token's loss depends on the other tokens of its sequence.
    """

    @property
    def needs(self) -> frozenset[str]:
        """The optional fields it reads: any of `proximal`, `reference`, `entropy`. A class attribute will do."""
        ...

    def loss(self, batch: LossBatch) -> LossOutput:
        """Per-token loss; aggregation and its denominator are the trainer's."""
        ...


class Correction(Protocol):
    """What wraps any loss calculator: a factor on its terms, a mask, or a term of its own. Stateless.

    May have the attributes `stops_gradient` and `whole_sequences`, as a calculator; and `weighs_behaviour`, True where
    it multiplies by proximal / behaviour.
    """

    @property
    def needs(self) -> frozenset[str]:
        """The optional fields it reads, as `LossCalculator.needs`."""
        ...

    def correct(self, batch: LossBatch, output: LossOutput) -> LossOutput:
        """Return what to minimise instead of `output`; its metrics are kept and added to."""
        ...
