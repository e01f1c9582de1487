"""Part an update's samples among the ranks of a data-parallel group."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from agentrl_core.batching.trie import Overlap

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentrl_core.batching.samples import Sample


def share_out(samples: Sequence[Sample], ranks: int) -> list[list[Sample]]:
    """Give every rank about as many tokens after merging; a share may be empty.

    A group stays on one rank, where what its records share is computed once, unless it has more tokens than a rank's
    fair share; then it is parted between records, which never are. Equal samples are shared out equally.
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
    for tokens, part in sorted(((_tokens(part), part) for part in parts), key=lambda item: -item[0]):
        least = loads.index(min(loads))
        shares[least] += part
        loads[least] += tokens
    return shares


def _parts(members: Sequence[Sample], count: int) -> list[list[Sample]]:
    """A group in at most `count` parts of about as many tokens beyond those that all of it begins with."""
    records: dict[int, list[Sample]] = {}
    for sample in members:
        records.setdefault(sample.record, []).append(sample)
    count = min(count, len(records))
    if count == 1:
        return [list(members)]
    # neighbours in the order of their ids share the most
    ordered = sorted(records.values(), key=lambda of_record: list(of_record[0].ids))
    trunk = _begin_alike(min(list(sample.ids) for sample in members), max(list(sample.ids) for sample in members))
    own = [max(_tokens(of_record) - trunk, 1) for of_record in ordered]
    parts: list[list[Sample]] = [[] for _ in range(count)]
    before = 0
    for tokens, of_record in zip(own, ordered, strict=True):
        parts[int((before + tokens / 2) * count / sum(own))] += of_record
        before += tokens
    return [part for part in parts if part]


def _begin_alike(left: Sequence[int], right: Sequence[int]) -> int:
    return next((place for place, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), len(left))


def _tokens(samples: Iterable[Sample]) -> int:
    return Overlap(sample.ids for sample in samples).tokens
