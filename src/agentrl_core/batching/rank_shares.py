"""Split an update's samples over data-parallel ranks, balanced by tokens after merging."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from agentrl_core.batching.trie import Overlap

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentrl_core.batching.samples import Sample


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
