"""Data-parallel ranks of the learner: shares and collectives that make several processes train exactly as one would.

All ranks have equal weights and take equal steps, each on its share of every update (`share_out`). Denominators are
counted over all ranks, gradients are summed instead of averaged, and a fault on one rank refuses the update on all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar, cast

import attrs
import torch
from torch import distributed

from agentrl_core.batching.trie import Overlap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

    from agentrl_core.batching.samples import Sample
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


def share_out(samples: Sequence[Sample], ranks: int) -> list[list[Sample]]:
    """Return one share per rank with similar numbers of tokens after merging; a share may be empty.

    A group stays on one rank, so that its records' shared prefix is computed once. A group with more tokens than a
    rank's fair share is split between records; a record is never split. The result depends on the samples only.
    """
    groups: dict[int, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    sizes = {group: _tokens(members) for group, members in groups.items()}
    fair = sum(sizes.values()) / ranks
    parts = [
        part
        for group, members in groups.items()
        for part in _parts(members, min(ranks, math.ceil(sizes[group] / fair)))
    ]
    shares: list[list[Sample]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    # The largest part first, each to the rank with the smallest load.
    for tokens, part in sorted(((_tokens(part), part) for part in parts), key=lambda item: -item[0]):
        least = loads.index(min(loads))
        shares[least] += part
        loads[least] += tokens
    return shares


def _parts(members: Sequence[Sample], count: int) -> list[list[Sample]]:
    """Split a group into at most `count` parts with similar numbers of tokens beyond the group's common prefix."""
    records: dict[int, list[Sample]] = {}
    for sample in members:
        records.setdefault(sample.record, []).append(sample)
    count = min(count, len(records))
    if count == 1:
        return [list(members)]
    # In the order of their ids, neighbours share the longest prefixes. The common prefix of all is that of the first
    # and the last; every part computes it again, so it does not count for the balance.
    ordered = sorted(records.values(), key=lambda of_record: list(of_record[0].ids))
    trunk = _begin_alike(min(list(sample.ids) for sample in members), max(list(sample.ids) for sample in members))
    # At least 1: records that are equal to the common prefix add no tokens, and the sum must not be 0.
    own = [max(_tokens(of_record) - trunk, 1) for of_record in ordered]
    parts: list[list[Sample]] = [[] for _ in range(count)]
    before = 0
    for tokens, of_record in zip(own, ordered, strict=True):
        parts[int((before + tokens / 2) * count / sum(own))] += of_record
        before += tokens
    return [part for part in parts if part]


def _begin_alike(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    return next((place for place, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), len(left))


def _tokens(samples: Iterable[Sample]) -> int:
    return Overlap(sample.ids for sample in samples).tokens
