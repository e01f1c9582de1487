"""Vocabulary-parallel log-probabilities: combine the softmax sums of processes that each hold some rows of the head.

All processes have the same hidden states and targets. Each holds the rows [start, start + V) of a head with
`vocabulary` rows. N tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch
from torch import distributed

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.losses.logprob import SoftmaxSums


@attrs.frozen(kw_only=True, eq=False)
class VocabularyShard:
    """Range of the head's rows in this process. `merge` and `add_up` block until every process of the group calls."""

    start: int
    """First row of this process."""
    vocabulary: int
    """Number of rows of the whole head."""
    group: distributed.ProcessGroup | None = None
    """None: all processes."""

    @classmethod
    def even(cls, vocabulary: int, group: distributed.ProcessGroup | None = None) -> tuple[VocabularyShard, slice]:
        """Split a head as evenly as possible in the order of ranks; return this rank's shard and its rows."""
        rank, size = distributed.get_rank(group), distributed.get_world_size(group)
        rows = slice(vocabulary * rank // size, vocabulary * (rank + 1) // size)
        return cls(start=rows.start, vocabulary=vocabulary, group=group), rows

    def merge(self, sums: SoftmaxSums) -> None:
        """Combine `sums` with those of the other shards, in place: two reductions, of [N] and at most [3, N]."""
        # The common maximum comes first: only then have the sums of exponentials the same scale.
        maximum = sums.maximum.clone()
        distributed.all_reduce(maximum, distributed.ReduceOp.MAX, self.group)
        scale = (sums.maximum - maximum).exp_()
        parts = [sums.chosen, sums.total * scale]
        if sums.weighted is not None:
            parts.append(sums.weighted * scale)
        stacked = torch.stack(parts)
        self.add_up(stacked)
        sums.maximum, sums.chosen, sums.total = maximum, stacked[0], stacked[1]
        if sums.weighted is not None:
            sums.weighted = stacked[2]

    def add_up(self, values: Tensor) -> None:
        """Sum `values` over the group, in place. Used for gradients too: each shard has only its rows' part of them."""
        distributed.all_reduce(values, distributed.ReduceOp.SUM, self.group)
