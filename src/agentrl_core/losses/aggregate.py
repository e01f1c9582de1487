"""From per-token losses to one number: what is summed, and what it is divided by.

The denominator spans the whole optimizer update, so a gradient does not depend on how rows fall into
micro-batches. N loss tokens of a micro-batch, S sequences of the update.
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
    """How a loss is normalised; its options stand in the config's `loss` section beside the calculator's own."""

    aggregation: Aggregation = field(default="token_mean", validator=validators.in_(_AGGREGATIONS))
    """`token_mean`: sum over loss tokens / loss tokens of the update (DAPO, arXiv 2503.14476).
    `seq_mean_token_mean`: mean over sequences of each one's token mean (GRPO, arXiv 2402.03300).
    `seq_mean_token_sum`: mean over sequences of each one's token sum (MiniRL, arXiv 2512.01374).
    `constant`: sum over loss tokens / (sequences x `horizon`) (Dr. GRPO, arXiv 2503.20783).
    `agentcpm_rows`: mean over training rows of the mean over the tokens that the loss *kept*; AgentCPM's, which
    reweights what is left when tokens are dropped. The others count every loss token, kept or not."""
    unit: Literal["record", "interaction", "sequence"] = field(default="record", validator=validators.in_(_UNITS))
    """What a sequence is: all calls of a record, so that one of many turns counts for no more than another; a single
    call; or what `rollout.agent.export_style` makes a training sequence of, as AReaL does. `token_mean` has none."""
    horizon: int | None = field(default=None, validator=validators.optional(validators.gt(0)))
    """Tokens that `constant` divides a sequence's sum by."""

    @horizon.validator
    def _only_constant(self, _attribute: object, value: int | None) -> None:
        if (value is None) == (self.aggregation == "constant"):
            found = "none" if value is None else value
            raise ValueError(
                f"'horizon' (tokens) belongs to aggregation 'constant', which needs it; found {found} "
                f"with aggregation '{self.aggregation}'"
            )

    @property
    def sequence(self) -> Unit:
        """What `LossBatch.sequence` numbers."""
        return "row" if self.aggregation == "agentcpm_rows" else self.unit


@attrs.frozen(kw_only=True, eq=False)
class Denominators:
    """Counts over every micro-batch and rank of one optimizer update, known before its first backward."""

    tokens: Tensor
    """Masked tokens. Scalar."""
    sequences: Tensor
    """Sequences with a masked token. Scalar."""
    sequence_tokens: Tensor
    """Masked tokens of each sequence, at least 1. [S]"""

    @classmethod
    def count(cls, mask: Tensor, sequence: Tensor, num_sequences: int) -> Denominators:
        """Count the update's loss tokens; `mask` and `sequence` as in LossBatch, of all its micro-batches."""
        per_sequence = mask.new_zeros(num_sequences).index_add(0, sequence, mask)
        return cls(
            tokens=mask.sum(),
            sequences=(per_sequence > 0).sum().to(mask.dtype),
            sequence_tokens=per_sequence.clamp_min(1.0),
        )


def aggregate(config: AggregationConfig, batch: LossBatch, output: LossOutput, denominators: Denominators) -> Tensor:
    """The micro-batch's share of the update's loss: the shares of all micro-batches add up to it. Scalar.

    `agentcpm_rows` counts kept tokens, which only the forward tells; a row lies in one micro-batch, so its
    share is complete there. `denominators` counts the sequences that `config.sequence` names.
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
        return terms.sum() / (num_sequences * float(config.horizon or 1))
    sums = terms.new_zeros(batch.num_sequences).index_add(0, batch.sequence, terms)
    kept = output.keep.new_zeros(batch.num_sequences).index_add(0, batch.sequence, output.keep)
    return (sums / kept.clamp_min(1.0)).sum() / num_sequences
