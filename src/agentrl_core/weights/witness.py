"""Prove that the trained tokens are the sampled ones, by a digest taken at the engine and checked before training.

Every interaction carries a digest of its ids, chained to its parent's. It is taken when the engine finishes, from the
ids that went in and came out. If a later step stores, joins or cuts them wrongly, the digest does not match.
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
    """First place at which a record's tokens differ from the sampler's."""

    interaction: str
    turn: int
    """The interaction's `seq`."""
    token: int
    """Position in the whole sequence (prompt and output of the lineage) from which on the tokens are unconfirmed."""

    def __str__(self) -> str:
        return f"interaction {self.interaction}, turn {self.turn}, token {self.token}"


@attrs.frozen(kw_only=True)
class Fidelity:
    """Number of a record's trained tokens that the engine really sampled after the prompt that they are trained on."""

    trained: int
    """Output tokens of the policy."""
    exact: int
    """Trained tokens that the engine's digest confirms."""
    unwitnessed: int = 0
    """Trained tokens without a digest: stored before digests existed, or by hand."""
    deviation: Deviation | None = None
    """The first deviation that a digest shows."""

    @property
    def share(self) -> float:
        """`exact` / `trained`; 1 if nothing is trained."""
        return self.exact / self.trained if self.trained else 1.0

    def __add__(self, other: Fidelity) -> Fidelity:
        return Fidelity(
            trained=self.trained + other.trained,
            exact=self.exact + other.exact,
            unwitnessed=self.unwitnessed + other.unwitnessed,
            deviation=self.deviation or other.deviation,
        )


NOTHING = Fidelity(trained=0, exact=0)
"""Fidelity of no tokens: the sum over no records."""


def witness(parent: str, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> str:
    """Return the digest of an interaction's new prompt ids and output ids; it includes its parent's digest.

    `parent` is empty for a root.
    """
    count = len(prompt_ids)
    # The number of prompt ids is included: a shifted border between prompt and output changes the digest.
    data = struct.pack(f"<i{count + len(output_ids)}q", count, *prompt_ids, *output_ids)
    return hashlib.blake2b(parent.encode() + data, digest_size=8).hexdigest()


def verify(episode: Episode) -> Fidelity:
    """Check the digests of a record's interactions."""
    by_id = {item.id: item for item in episode.interactions}
    verdicts: dict[str, bool | None] = {}
    found = NOTHING
    # A parent completes before its children, so its verdict is known when theirs needs it.
    for item in sorted(episode.interactions, key=lambda one: one.seq):
        verdicts[item.id] = verdict = _verdict(item, by_id, verdicts)
        if not item.trainable:
            continue
        count = len(item.output_ids)
        deviation = None
        # The digest covers all new ids of the interaction at once, so the first doubtful token is its first one. With a
        # broken lineage its position is unknown: 0.
        if verdict is False:
            start = len(episode.full_ids(item)) - count - len(item.prompt_ids) if _rooted(item, by_id) else 0
            deviation = Deviation(interaction=item.id, turn=item.seq, token=start)
        exact, unwitnessed = count * (verdict is True), count * (verdict is None)
        found += Fidelity(trained=count, exact=exact, unwitnessed=unwitnessed, deviation=deviation)
    return found


def _verdict(item: Interaction, by_id: dict[str, Interaction], verdicts: dict[str, bool | None]) -> bool | None:
    """Return whether the digest confirms an interaction and everything before it; None without a digest."""
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
    """Return whether the record has every interaction of the lineage."""
    node: Interaction | None = item
    while node is not None and node.parent is not None:
        node = by_id.get(node.parent)
    return node is not None
