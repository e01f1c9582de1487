"""The processes that train one policy together, each on its share of every update; or one process alone.

They hold equal weights and take equal steps. What is exact for one process stays so: denominators are counted over
all ranks, gradients are summed and not averaged, and what would refuse an update on one rank refuses it on all.
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
"""Numbers that are sent at once, where tensors are many and small: 64 MB in fp32."""


@attrs.frozen(kw_only=True)
class Ranks:
    """A data-parallel group. Its methods wait for every process of the group, which calls them in the same order."""

    rank: int = 0
    size: int = 1
    group: distributed.ProcessGroup | None = None
    """None: all processes."""

    @classmethod
    def of(cls, group: distributed.ProcessGroup | None = None) -> Ranks:
        """Return the ranks of a process group that was set up before."""
        return cls(rank=distributed.get_rank(group), size=distributed.get_world_size(group), group=group)

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, by rank; it is pickled."""
        if self.size == 1:
            return [value]
        found: list[T | None] = [None] * self.size
        distributed.all_gather_object(found, value, self.group)
        return cast("list[T]", found)

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Sum each over the ranks, in place."""
        if self.size == 1:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            distributed.all_reduce(flat, distributed.ReduceOp.SUM, self.group)
            for tensor, total in zip(bucket, torch.split(flat, [tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(total.view_as(tensor))

    def add_up_gradients(self, weights: Iterable[Tensor]) -> None:
        """Sum gradients over the ranks; a weight that has one on some rank has the sum on all."""
        if self.size == 1:
            return
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
        """Count over all shares. A sequence lies on one rank whole, so the tokens of each are known there."""
        counts = torch.stack([of_share.tokens, of_share.sequences])
        self.add_up([counts])
        return attrs.evolve(of_share, tokens=counts[0], sequences=counts[1])


ALONE = Ranks()
"""One process."""


def _buckets(tensors: Iterable[Tensor]) -> Iterator[Sequence[Tensor]]:
    """Tensors of one type in their order, up to `_BUCKET` numbers together."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        full = sum(item.numel() for item in bucket) + tensor.numel() > _BUCKET
        if bucket and (full or tensor.dtype != bucket[0].dtype or tensor.device != bucket[0].device):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
