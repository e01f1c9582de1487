"""Log-probabilities where each process holds some rows of the head: what a softmax is made of, over all of them.

The processes hold the same hidden states and targets, and the rows [start, start + V) of a head of `vocabulary` rows.
N tokens.
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
    """The rows of the head that are held here. Its methods wait for every process of the group."""

    start: int
    """First row."""
    vocabulary: int
    """Rows of the whole head."""
    group: distributed.ProcessGroup | None = None
    """None: all processes."""

    @classmethod
    def even(cls, vocabulary: int, group: distributed.ProcessGroup | None = None) -> tuple[VocabularyShard, slice]:
        """Part a head as evenly as it goes, in the order of ranks; returns the shard, and the rows that it holds."""
        rank, size = distributed.get_rank(group), distributed.get_world_size(group)
        rows = slice(vocabulary * rank // size, vocabulary * (rank + 1) // size)
        return cls(start=rows.start, vocabulary=vocabulary, group=group), rows

    def merge(self, sums: SoftmaxSums) -> None:
        """Take in what the other shards hold: two reductions of [N] and at most [3, N]."""
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
        """Sum over the group, in place: of gradients, as each shard knows its rows' share only."""
        distributed.all_reduce(values, distributed.ReduceOp.SUM, self.group)
