"""From samples to tensors: optimizer updates, and the padded micro-batches of each.

B rows of a micro-batch, T its longest row, N its loss tokens, S sequences of the update.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import attrs
import torch

from agentrl_core.losses.aggregate import AggregationConfig, Denominators

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from agentrl_core.batching.samples import Sample
    from agentrl_core.losses.aggregate import Unit


@attrs.frozen(kw_only=True, eq=False)
class MicroBatch:
    """What one forward takes. Rows are padded on the right, so causal attention needs no mask."""

    ids: Tensor
    """Token ids, 0 in the padding. Long. [B, T]"""
    tokens: int
    """Token ids that are not padding."""
    row: Tensor
    """Row of each loss token. Long. [N]"""
    position: Tensor
    """Place of each loss token in its row. Long. [N]"""
    behaviour_logprobs: Tensor
    """Float. [N]"""
    temperature: Tensor
    """Sampling temperature of each loss token. Float. [N]"""
    advantages: Tensor
    """Float. [N]"""
    version: Tensor
    """Policy version that sampled each loss token. Long. [N]"""
    interaction: Tensor
    """Index into `Samples.interactions`. Long. [N]"""
    record: Tensor
    """Index into `Samples.records`. Long. [N]"""
    group: Tensor
    """Index into `Samples.groups`. Long. [N]"""
    sequence: Tensor
    """Index of the sequence that aggregation averages over, in [0, S). Long. [N]"""
    num_sequences: int
    """S."""

    @property
    def targets(self) -> Tensor:
        """The loss tokens themselves. Long. [N]."""
        return self.ids[self.row, self.position]

    @property
    def mask(self) -> Tensor:
        """Every token of a micro-batch counts: 1.0. [N]."""
        return torch.ones_like(self.advantages)


@attrs.frozen(kw_only=True, eq=False)
class Update:
    """One optimizer update."""

    micro_batches: tuple[MicroBatch, ...]
    denominators: Denominators

    @property
    def records(self) -> list[int]:
        """Indices of the records in it, rising."""
        return sorted(set(chain.from_iterable(batch.record.tolist() for batch in self.micro_batches)))


def split_updates(samples: Sequence[Sample], updates: int) -> list[list[Sample]]:
    """Part a step's samples into at most `updates` shares of about as many groups each.

    A group stays whole, unless there are fewer groups than updates; then records do. None is empty.
    """

    def by_group(sample: Sample) -> int:
        return sample.group

    def by_record(sample: Sample) -> int:
        return sample.record

    key = by_group if len({sample.group for sample in samples}) >= updates else by_record
    units = list(dict.fromkeys(map(key, samples)))
    count = min(updates, len(units))
    share = {unit: index * count // len(units) for index, unit in enumerate(units)}
    shares: list[list[Sample]] = [[] for _ in range(count)]
    for sample in samples:
        shares[share[key(sample)]].append(sample)
    return shares


def pack(samples: Sequence[Sample], *, max_tokens: int, config: AggregationConfig, device: str = "cpu") -> Update:
    """Lay out one update: rows sorted by length, each micro-batch of at most `max_tokens` ids with its padding.

    A longer row goes alone.
    """
    numbers = _number_sequences(samples, config.sequence)
    num_sequences = 1 + max(chain.from_iterable(numbers))
    order = sorted(range(len(samples)), key=lambda index: len(samples[index].ids))
    batches = tuple(
        _micro_batch([samples[i] for i in part], [numbers[i] for i in part], num_sequences, device)
        for part in _partition(order, [len(sample.ids) for sample in samples], max_tokens)
    )
    denominators = Denominators.count(
        torch.cat([batch.mask for batch in batches]), torch.cat([batch.sequence for batch in batches]), num_sequences
    )
    return Update(micro_batches=batches, denominators=denominators)


def _number_sequences(samples: Sequence[Sample], unit: Unit) -> list[list[int]]:
    """Dense sequence numbers of every sample's loss tokens."""
    numbers: dict[int, int] = {}
    result = []
    for row, sample in enumerate(samples):
        if unit == "interaction":
            owners = list(sample.interactions)
        elif unit == "sequence":
            owners = list(sample.sequences)
        else:
            owners = [row if unit == "row" else sample.record] * len(sample.positions)
        result.append([numbers.setdefault(owner, len(numbers)) for owner in owners])
    return result


def _partition(order: Sequence[int], lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Fill micro-batches in rising order of length, so that the newest row sets the padded width."""
    parts: list[list[int]] = []
    for index in order:
        if parts and (len(parts[-1]) + 1) * lengths[index] <= max_tokens:
            parts[-1].append(index)
        else:
            parts.append([index])
    return parts


def _micro_batch(
    samples: Sequence[Sample], sequences: Sequence[Sequence[int]], num_sequences: int, device: str
) -> MicroBatch:
    width = max(len(sample.ids) for sample in samples)

    def longs(values: Iterable[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.long, device=device)

    def floats(of: Callable[[Sample], Sequence[float]]) -> Tensor:
        return torch.tensor([value for sample in samples for value in of(sample)], dtype=torch.float32, device=device)

    def spread(of: Callable[[Sample], int]) -> Tensor:
        return longs(of(sample) for sample in samples for _ in sample.positions)

    return MicroBatch(
        ids=torch.tensor([[*sample.ids, *[0] * (width - len(sample.ids))] for sample in samples], device=device),
        tokens=sum(len(sample.ids) for sample in samples),
        row=longs(row for row, sample in enumerate(samples) for _ in sample.positions),
        position=longs(chain.from_iterable(sample.positions for sample in samples)),
        behaviour_logprobs=floats(lambda sample: sample.logprobs),
        temperature=floats(lambda sample: sample.temperatures),
        advantages=floats(lambda sample: sample.advantages),
        version=longs(chain.from_iterable(sample.versions for sample in samples)),
        interaction=longs(chain.from_iterable(sample.interactions for sample in samples)),
        record=spread(lambda sample: sample.record),
        group=spread(lambda sample: sample.group),
        sequence=longs(chain.from_iterable(sequences)),
        num_sequences=num_sequences,
    )
