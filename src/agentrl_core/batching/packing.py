"""Pack a step's samples into tensors: optimizer updates, each made of micro-batches in which shared prefixes merge.

T tokens of a micro-batch, N its loss tokens, U distinct predictions among them, S sequences of the update.
"""

from __future__ import annotations

from array import array
from itertools import chain
from typing import TYPE_CHECKING

import attrs
import numpy as np
import torch

from agentrl_core.api.kept_tokens import ID_BYTES
from agentrl_core.api.losses import LossBatch
from agentrl_core.batching.trie import Overlap, TokenTrie
from agentrl_core.losses.aggregate import AggregationConfig, Denominators
from agentrl_core.losses.kept import KeptSets
from agentrl_core.models.placement import moved

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from agentrl_core.batching.samples import Sample
    from agentrl_core.losses.aggregate import Unit

_PREDICTION = np.dtype([("place", np.int64), ("token", np.int64), ("temperature", np.float32), ("mask", np.int64)])


@attrs.frozen(kw_only=True, eq=False)
class Predictions:
    """The U distinct log-probabilities that a micro-batch's loss tokens need.

    Loss tokens with equal id, temperature and sampling mask, and equal tokens before them, share one prediction.
    """

    place: Tensor
    """Index, among the T tokens, of the token before it, whose hidden state predicts it. Long, rising. [U]"""
    token: Tensor
    """Token id. Long. [U]"""
    temperature: Tensor
    """Sampling temperature. Float. [U]"""
    row: Tensor
    """Index of a sequence of the trie that contains it. Long. [U]"""
    kept: KeptSets | None = None
    """Sampling masks [U]; None if no token has one."""

    def part(self, wanted: slice) -> Predictions:
        """Return some of the predictions."""
        return Predictions(
            place=self.place[wanted],
            token=self.token[wanted],
            temperature=self.temperature[wanted],
            row=self.row[wanted],
            kept=None if self.kept is None else self.kept.part(wanted),
        )


@attrs.frozen(kw_only=True, eq=False)
class MicroBatch:
    """Input of one forward pass: the T tokens of a trie, and the N loss tokens on it."""

    trie: TokenTrie
    """Trie of the samples, each without its last loss token, which predicts nothing."""
    ids: Tensor
    """Token ids. Long. [T]"""
    positions: Tensor
    """Position of each token in its sequences, from 0. Long. [T]"""
    call_tokens: int
    """Number of tokens to compute if every call ran separately with its whole prompt."""
    predictions: Predictions
    prediction: Tensor
    """Index into `predictions` of each loss token. Long. [N]"""
    behaviour_logprobs: Tensor
    """Float. [N]"""
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
    def tokens(self) -> int:
        """T."""
        return len(self.ids)

    @property
    def targets(self) -> Tensor:
        """The loss tokens themselves. Long. [N]."""
        return self.predictions.token[self.prediction]

    @property
    def mask(self) -> Tensor:
        """Every token of a micro-batch counts: 1.0. [N]."""
        return torch.ones_like(self.advantages)

    def view(self, logprobs: Tensor, entropy: Tensor, *, version: int) -> LossBatch:
        """Return the loss calculator's input; the fields of other policies (proximal, reference) stay None.

        `logprobs` and `entropy` of the loss tokens come from `Policy.logprobs`, [N] each. `version` is the policy
        version of the current weights.
        """
        return LossBatch(
            logprobs=logprobs,
            behaviour_logprobs=self.behaviour_logprobs,
            advantages=self.advantages,
            mask=self.mask,
            sequence=self.sequence,
            num_sequences=self.num_sequences,
            record=self.record,
            group=self.group,
            lag=version - self.version,
            entropy=entropy,
        )


@attrs.frozen(kw_only=True, eq=False)
class Update:
    """Micro-batches of one optimizer update, with the denominators of its loss."""

    micro_batches: tuple[MicroBatch, ...]
    denominators: Denominators
    """Counts over all micro-batches of this rank."""

    @classmethod
    def of(cls, micro_batches: Sequence[MicroBatch], num_sequences: int, *, device: torch.device | str) -> Update:
        """Make an update whose denominators, on `device`, count the loss tokens of its micro-batches."""
        # `torch.cat` needs at least one tensor, and an empty share has no micro-batch.
        nothing = torch.zeros(0, device=device)
        denominators = Denominators.count(
            torch.cat([nothing, *(batch.mask for batch in micro_batches)]),
            torch.cat([nothing.long(), *(batch.sequence for batch in micro_batches)]),
            num_sequences,
        )
        return cls(micro_batches=tuple(micro_batches), denominators=denominators)

    @property
    def records(self) -> list[int]:
        """Indices of the records with a loss token in the update, rising."""
        return sorted(set(chain.from_iterable(batch.record.tolist() for batch in self.micro_batches)))

    @property
    def tokens(self) -> int:
        """Number of tokens to compute, with shared prefixes counted once."""
        return sum(batch.tokens for batch in self.micro_batches)

    @property
    def call_tokens(self) -> int:
        """Number of tokens to compute if every call ran separately with its whole prompt."""
        return sum(batch.call_tokens for batch in self.micro_batches)


def split_updates(samples: Sequence[Sample], updates: int) -> list[list[Sample]]:
    """Split a step's samples into at most `updates` shares with similar numbers of groups; no share is empty.

    A group stays in one share. If there are fewer groups than updates, groups are split between records instead.
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


def pack(
    samples: Sequence[Sample],
    *,
    max_tokens: int,
    config: AggregationConfig,
    device: str = "cpu",
    merge: bool = True,
    whole_sequences: bool = False,
    joined_tokens: int | None = None,
) -> Update:
    """Pack one update into micro-batches of at most `max_tokens` tokens after merging.

    A group stays in one micro-batch if it fits. Else it is split so that samples with long shared prefixes stay
    together. A sample longer than `max_tokens` gets a micro-batch of its own. Without `merge` no token is shared.
    Several groups, or parts of them, share a micro-batch of at most `joined_tokens` tokens; None: `max_tokens`.

    `whole_sequences` is for losses whose terms depend on all tokens of a sequence: a sequence in the sense of
    `config.unit` then stays in one micro-batch, also if that exceeds `max_tokens`. Without samples the update has no
    micro-batches; this is the share of a rank that has nothing to do.
    """
    numbers = _number_sequences(samples, config.sequence)
    num_sequences = 1 + max(chain.from_iterable(numbers), default=-1)
    batches = [
        _micro_batch([samples[i] for i in part], [numbers[i] for i in part], num_sequences, device, merge=merge)
        for part in _partition(
            samples,
            max_tokens,
            max_tokens if joined_tokens is None else min(joined_tokens, max_tokens),
            merge=merge,
            whole_records=whole_sequences and config.sequence == "record",
        )
    ]
    return Update.of(batches, num_sequences, device=device)


def _number_sequences(samples: Sequence[Sample], unit: Unit) -> list[list[int]]:
    """Return the sequence number of each loss token, per sample; numbers are 0 to S - 1 without gaps."""
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


def _partition(
    samples: Sequence[Sample], max_tokens: int, joined_tokens: int, *, merge: bool, whole_records: bool
) -> list[list[int]]:
    """Distribute groups over micro-batches; return the indices into `samples` of each micro-batch.

    Best-fit decreasing: the largest unit goes first, each to the micro-batch where it adds the fewest tokens.
    """
    groups: dict[int, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(sample.group, []).append(index)
    units = [
        unit
        for members in groups.values()
        for unit in _units(samples, members, max_tokens, merge=merge, whole_records=whole_records)
    ]
    bins: list[_Unit] = []
    for unit in sorted(units, key=lambda unit: -unit.tokens):
        fitting = [(total - one.tokens, one) for one in bins if (total := one.tokens_with(unit)) <= joined_tokens]
        if fitting:
            min(fitting, key=lambda choice: choice[0])[1].take(unit)
        else:
            bins.append(unit)
    return [sorted(one.members) for one in bins]


@attrs.define(kw_only=True, eq=False)
class _Unit:
    """Samples that stay together in one micro-batch."""

    members: list[int]
    """Indices into the samples."""
    tokens: int = 0
    """Number of tokens after merging."""
    overlap: Overlap | None = None
    """Trie size of the members; None if nothing is merged."""

    def tokens_with(self, other: _Unit) -> int:
        """Return an upper bound of the number of tokens of both units in one micro-batch."""
        if self.overlap is None or other.overlap is None:
            return self.tokens + other.tokens
        return self.overlap.joint_tokens(other.overlap)

    def take(self, other: _Unit) -> None:
        """Add the other unit's samples to this one."""
        self.members += other.members
        self.tokens += other.tokens
        if self.overlap is not None and other.overlap is not None:
            self.overlap.join(other.overlap)
            self.tokens = self.overlap.tokens


def _units(
    samples: Sequence[Sample], members: Sequence[int], max_tokens: int, *, merge: bool, whole_records: bool
) -> list[_Unit]:
    """Split a group into units that fit into `max_tokens`, greedily in the order of the samples' token ids.

    In that order neighbours share the longest prefixes, so a split loses the least.
    """
    inputs = {index: _inputs(samples[index]) for index in members}
    # With `whole_records` the samples of a record are one piece, although other records' samples may lie between them.
    pieces: dict[int, list[int]] = {}
    for index in sorted(members, key=inputs.__getitem__):
        pieces.setdefault(samples[index].record if whole_records else index, []).append(index)
    units: list[_Unit] = []
    for piece in pieces.values():
        ids = [inputs[index] for index in piece]
        overlap = Overlap(ids) if merge else None
        unit = _Unit(members=piece, tokens=overlap.tokens if overlap else sum(map(len, ids)), overlap=overlap)
        if units and units[-1].tokens_with(unit) <= max_tokens:
            units[-1].take(unit)
        else:
            units.append(unit)
    return units


def _micro_batch(
    samples: Sequence[Sample], sequences: Sequence[Sequence[int]], num_sequences: int, device: str, *, merge: bool
) -> MicroBatch:
    trie = TokenTrie.build(map(_inputs, samples), merge=merge)
    counts = [len(sample.positions) for sample in samples]

    def longs(values: Iterable[int]) -> Tensor:
        return moved(torch.from_numpy(np.fromiter(values, dtype=np.int64)), device)

    def floats(values: Iterable[Sequence[float]]) -> Tensor:
        return moved(torch.from_numpy(np.fromiter(chain.from_iterable(values), dtype=np.float32)), device)

    def spread(values: Sequence[int]) -> Tensor:
        return moved(torch.from_numpy(np.repeat(np.array(values, dtype=np.int64), counts)), device)

    predictions, prediction = _predictions(samples, trie, device)
    return MicroBatch(
        trie=trie,
        ids=longs(trie.ids),
        positions=longs(trie.positions),
        call_tokens=sum(sample.call_tokens for sample in samples),
        predictions=predictions,
        prediction=prediction,
        behaviour_logprobs=floats(sample.logprobs for sample in samples),
        advantages=floats(sample.advantages for sample in samples),
        version=longs(chain.from_iterable(sample.versions for sample in samples)),
        interaction=longs(chain.from_iterable(sample.interactions for sample in samples)),
        record=spread([sample.record for sample in samples]),
        group=spread([sample.group for sample in samples]),
        sequence=longs(chain.from_iterable(sequences)),
        num_sequences=num_sequences,
    )


def _inputs(sample: Sample) -> array[int]:
    """Return the token ids that a forward pass needs: all before the last loss token, which predicts nothing."""
    return array("I", sample.ids[: sample.positions[-1]])


def _predictions(samples: Sequence[Sample], trie: TokenTrie, device: str) -> tuple[Predictions, Tensor]:
    """Return the U distinct predictions, and the index of each loss token's prediction [N]."""
    wanted = np.empty(sum(len(sample.positions) for sample in samples), dtype=_PREDICTION)
    row = np.empty(len(wanted), dtype=np.int64)
    # Two records may have different masks at one place: they were sampled from weights of different versions.
    numbers: dict[bytes, int] = {b"": 0}
    start = 0
    for index, sample in enumerate(samples):
        part = slice(start, start + len(sample.positions))
        wanted["place"][part] = trie.places(index, [position - 1 for position in sample.positions])
        wanted["token"][part] = [sample.ids[position] for position in sample.positions]
        wanted["temperature"][part] = sample.temperatures
        wanted["mask"][part] = [numbers.setdefault(mask, len(numbers)) for mask in sample.kept] or 0
        row[part] = index
        start = part.stop
    # `unique` sorts by place first; the attention methods rely on rising places.
    different, first, prediction = np.unique(wanted, return_index=True, return_inverse=True)

    def tensor(values: NDArray[np.generic]) -> Tensor:
        # A field of a structured array is not contiguous, so it is copied.
        return moved(torch.from_numpy(values.copy()), device)

    return (
        Predictions(
            place=tensor(different["place"]),
            token=tensor(different["token"]),
            temperature=tensor(different["temperature"]),
            row=tensor(row[first]),
            kept=_kept_sets([*numbers], different["mask"], device) if len(numbers) > 1 else None,
        ),
        tensor(prediction),
    )


def _kept_sets(masks: Sequence[bytes], chosen: NDArray[np.int64], device: str) -> KeptSets:
    """Return the sampling masks of predictions, from all different masks and the number of each prediction's."""
    ids = np.frombuffer(b"".join(masks[number] for number in chosen.tolist()), dtype="<i4").astype(np.int64)
    counts = np.array([len(mask) // ID_BYTES for mask in masks], dtype=np.int64)[chosen]
    return KeptSets(counts=moved(torch.from_numpy(counts), device), ids=moved(torch.from_numpy(ids), device))
