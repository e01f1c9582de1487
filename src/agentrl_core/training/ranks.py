"""Data-parallel ranks of the learner: collectives that make several processes train exactly as one would.

All ranks have equal weights and take equal steps, each on its share of every update. Denominators are counted over all
ranks, gradients are summed instead of averaged, and a fault on one rank refuses the update on all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

import attrs
import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

    from agentrl_core.losses.aggregate import Denominators

T = TypeVar("T")

_BUCKET = 2**24
"""Largest number of elements to send at once when many small tensors are joined: 64 MB in fp32."""


@attrs.frozen(kw_only=True)
class Ranks:
    """Data-parallel group of processes.

    Its methods block until every process of the group has called them; all must call them in the same order.
    """

    rank: int = 0
    """Number of this process in the group, from 0."""
    size: int = 1
    """Number of processes."""
    group: distributed.ProcessGroup | None = None
    """None: all processes."""

    @classmethod
    def of(cls, group: distributed.ProcessGroup | None = None) -> Ranks:
        """Return the ranks of an initialised process group."""
        return cls(rank=distributed.get_rank(group), size=distributed.get_world_size(group), group=group)

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of ranks; values are pickled."""
        if self.size == 1:
            return [value]
        found: list[T | None] = [None] * self.size
        distributed.all_gather_object(found, value, self.group)
        return cast("list[T]", found)

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Sum each tensor over the ranks, in place."""
        if self.size == 1:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            distributed.all_reduce(flat, distributed.ReduceOp.SUM, self.group)
            for tensor, total in zip(bucket, torch.split(flat, [tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(total.view_as(tensor))

    def add_up_gradients(self, weights: Iterable[Tensor]) -> None:
        """Sum gradients over the ranks. A weight that has a gradient on any rank gets the sum on all ranks."""
        if self.size == 1:
            return
        # A rank with an empty share has no gradients. All ranks must sum the same tensors, so they first agree on which
        # weights have a gradient anywhere.
        trained = [weight for weight in weights if weight.requires_grad]
        present = torch.tensor([weight.grad is not None for weight in trained], dtype=torch.int32)
        present = present.to(trained[0].device)
        self.add_up([present])
        taking_part = [weight for weight, count in zip(trained, present.tolist(), strict=True) if count]
        for weight in taking_part:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        self.add_up(weight.grad for weight in taking_part if weight.grad is not None)

    def denominators(self, of_share: Denominators) -> Denominators:
        """Return the denominators counted over all ranks' shares.

        A sequence lies on one rank completely, so its number of tokens (`sequence_tokens`) is already known there.
        """
        counts = torch.stack([of_share.tokens, of_share.sequences])
        self.add_up([counts])
        return attrs.evolve(of_share, tokens=counts[0], sequences=counts[1])


ALONE = Ranks()
"""Ranks of a run with a single process."""


def _buckets(tensors: Iterable[Tensor]) -> Iterator[Sequence[Tensor]]:
    """Group consecutive tensors of one dtype and device, up to `_BUCKET` elements each."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        full = sum(item.numel() for item in bucket) + tensor.numel() > _BUCKET
        if bucket and (full or tensor.dtype != bucket[0].dtype or tensor.device != bucket[0].device):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
