"""Aggregate per-token losses to one number: normalisers of all losses (`loss.aggregation`).

The denominator spans the whole optimizer update over all micro-batches and ranks, so a gradient does not depend on how
samples are packed. N loss tokens of a micro-batch, S sequences of the update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs
from attrs import field, validators

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.api.losses import LossBatch, LossOutput

Aggregation: TypeAlias = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant", "agentcpm_rows"]
Unit: TypeAlias = Literal["record", "interaction", "sequence", "row"]

_AGGREGATIONS = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant", "agentcpm_rows")
_UNITS = ("record", "interaction", "sequence")


@attrs.frozen(kw_only=True)
class AggregationConfig:
    """Options of a loss's normaliser; they are in the config's `loss` section beside the calculator's own options."""

    aggregation: Aggregation = field(default="token_mean", validator=validators.in_(_AGGREGATIONS))
    """`token_mean`: sum over loss tokens / number of loss tokens of the update (DAPO, arXiv 2503.14476).
    `seq_mean_token_mean`: mean over sequences of each sequence's token mean (GRPO, arXiv 2402.03300).
    `seq_mean_token_sum`: mean over sequences of each sequence's token sum (MiniRL, arXiv 2512.01374).
    `constant`: sum over loss tokens / (number of sequences x `horizon`) (Dr. GRPO, arXiv 2503.20783).
    `agentcpm_rows`: mean over training rows of the mean over the tokens that the loss *kept*, as in AgentCPM's AgentRL
    (another project). Dropped tokens give the remaining ones more weight there; the other normalisers count every loss
    token, kept or dropped."""
    unit: Literal["record", "interaction", "sequence"] = field(default="record", validator=validators.in_(_UNITS))
    """Unit that counts as one sequence. `record`: all calls of a record, so that a record with many turns counts no
    more than another. `interaction`: a single call. `sequence`: a training sequence as `rollout.agent.export_style`
    makes it, as in AReaL. `token_mean` does not use it."""
    horizon: int | None = field(default=None, validator=validators.optional(validators.gt(0)))
    """Number of tokens by which `constant` divides each sequence's sum."""

    @horizon.validator
    def _only_constant(self, _attribute: object, value: int | None) -> None:
        if (value is None) == (self.aggregation == "constant"):
            found = "none" if value is None else value
            raise ValueError(
                f"'horizon' (tokens) belongs to aggregation 'constant', which requires it; found {found} "
                f"with aggregation '{self.aggregation}'"
            )

    @property
    def sequence(self) -> Unit:
        """Unit that `LossBatch.sequence` numbers."""
        return "row" if self.aggregation == "agentcpm_rows" else self.unit


@attrs.frozen(kw_only=True, eq=False)
class Denominators:
    """Counts over all micro-batches and ranks of one optimizer update, known before its first backward pass."""

    tokens: Tensor
    """Number of tokens with mask 1. Scalar."""
    sequences: Tensor
    """Number of sequences with such a token. Scalar."""
    sequence_tokens: Tensor
    """Number of such tokens of each sequence, at least 1. [S]"""

    @classmethod
    def count(cls, mask: Tensor, sequence: Tensor, num_sequences: int) -> Denominators:
        """Count the update's loss tokens; `mask` and `sequence` as in LossBatch, concatenated over micro-batches."""
        per_sequence = mask.new_zeros(num_sequences).index_add(0, sequence, mask)
        return cls(
            tokens=mask.sum(),
            sequences=(per_sequence > 0).sum().to(mask.dtype),
            sequence_tokens=per_sequence.clamp_min(1.0),
        )


def aggregate(config: AggregationConfig, batch: LossBatch, output: LossOutput, denominators: Denominators) -> Tensor:
    """Return the micro-batch's share of the update's loss. Scalar; the shares of all micro-batches add up to the loss.

    `denominators` counts sequences of the unit `config.sequence`.
    """
    terms = output.per_token * output.keep
    num_sequences = denominators.sequences.clamp_min(1.0)
    if config.aggregation == "token_mean":
        return terms.sum() / denominators.tokens.clamp_min(1.0)
    if config.aggregation == "seq_mean_token_mean":
        return (terms / denominators.sequence_tokens[batch.sequence]).sum() / num_sequences
    if config.aggregation == "seq_mean_token_sum":
        return terms.sum() / num_sequences
    if config.aggregation == "constant":
        # `constant` always has a horizon; `or 1` is for the type checker.
        return terms.sum() / (num_sequences * float(config.horizon or 1))
    # agentcpm_rows. The number of kept tokens is known only after the forward pass. A row lies in one micro-batch
    # completely, so its mean can be taken here. A row without a kept token counts as 0.
    sums = terms.new_zeros(batch.num_sequences).index_add(0, batch.sequence, terms)
    kept = output.keep.new_zeros(batch.num_sequences).index_add(0, batch.sequence, output.keep)
    return (sums / kept.clamp_min(1.0)).sum() / num_sequences
