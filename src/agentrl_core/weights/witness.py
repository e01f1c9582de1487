"""Prove that what is trained is what was sampled: a digest taken at the engine, checked where the tokens are used.

Every interaction carries a digest of its ids, chained to its parent's. It is taken when the engine has ended, from the
ids that went in and came out, so nothing that later stores, joins or cuts them can agree with it by accident.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.types import Episode, Interaction


@attrs.frozen(kw_only=True)
class Deviation:
    """Where a record's tokens first are not those of the sampler."""

    interaction: str
    turn: int
    """The interaction's `seq`."""
    token: int
    """Position in the whole sequence (prompt and output of the lineage) from which on nothing is sure."""

    def __str__(self) -> str:
        return f"interaction {self.interaction}, turn {self.turn}, token {self.token}"


@attrs.frozen(kw_only=True)
class Fidelity:
    """How many of a record's trained tokens the sampler really produced, behind the prompt that they are trained on."""

    trained: int
    """Output tokens of the policy."""
    exact: int
    """Those of them that the engine's digest confirms."""
    unwitnessed: int = 0
    """Those without a digest: stored before there were any, or by hand."""
    deviation: Deviation | None = None
    """The first one that a digest contradicts."""

    @property
    def share(self) -> float:
        """`exact` of `trained`; 1 where nothing is trained."""
        return self.exact / self.trained if self.trained else 1.0

    def __add__(self, other: Fidelity) -> Fidelity:
        return Fidelity(
            trained=self.trained + other.trained,
            exact=self.exact + other.exact,
            unwitnessed=self.unwitnessed + other.unwitnessed,
            deviation=self.deviation or other.deviation,
        )


NOTHING = Fidelity(trained=0, exact=0)


def witness(parent: str, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> str:
    """Return the digest of an interaction: of its parent's (empty for a root), its new prompt ids and its output."""
    count = len(prompt_ids)
    data = struct.pack(f"<i{count + len(output_ids)}q", count, *prompt_ids, *output_ids)
    return hashlib.blake2b(parent.encode() + data, digest_size=8).hexdigest()


def verify(episode: Episode) -> Fidelity:
    """Check the digests of a record's interactions."""
    by_id = {item.id: item for item in episode.interactions}
    verdicts: dict[str, bool | None] = {}
    found = NOTHING
    for item in sorted(episode.interactions, key=lambda one: one.seq):
        verdicts[item.id] = verdict = _verdict(item, by_id, verdicts)
        if not item.trainable:
            continue
        count = len(item.output_ids)
        deviation = None
        if verdict is False:
            start = len(episode.full_ids(item)) - count - len(item.prompt_ids) if _rooted(item, by_id) else 0
            deviation = Deviation(interaction=item.id, turn=item.seq, token=start)
        exact, unwitnessed = count * (verdict is True), count * (verdict is None)
        found += Fidelity(trained=count, exact=exact, unwitnessed=unwitnessed, deviation=deviation)
    return found


def _verdict(item: Interaction, by_id: dict[str, Interaction], verdicts: dict[str, bool | None]) -> bool | None:
    """Whether a digest confirms an interaction with all that it continues; None without one."""
    if item.upstream or not item.witness:
        return None
    parent = by_id.get(item.parent) if item.parent else None
    if item.parent is not None and (parent is None or verdicts.get(parent.id) is False):
        return False
    before = parent.witness if parent else ""
    if witness(before, item.prompt_ids, item.output_ids) != item.witness:
        return False
    return True if parent is None else verdicts.get(parent.id)


def _rooted(item: Interaction, by_id: dict[str, Interaction]) -> bool:
    """Whether the whole lineage is there."""
    node: Interaction | None = item
    while node is not None and node.parent is not None:
        node = by_id.get(node.parent)
    return node is not None
