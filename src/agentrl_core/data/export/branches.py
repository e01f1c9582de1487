"""Walk an episode branch by branch: an episode is a tree of calls, while most file formats hold one dialogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from agentrl_core.batching.credit import children_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentrl_core.types import Episode, Interaction


@attrs.frozen(kw_only=True)
class Branch:
    """Path from a root of an episode's tree to one of its leaves."""

    index: int
    """0-based position among the episode's branches, in the order in which their last calls completed."""
    calls: tuple[Interaction, ...]
    """From the root to the leaf."""
    shared: frozenset[str]
    """Ids of the calls that an earlier branch contains too."""


def branches_of(episode: Episode) -> Iterator[Branch]:
    """Yield the branches of an episode; a call that several branches share is new in the first of them only."""
    children = children_of(episode)
    seen: set[str] = set()
    leaves = (item for item in episode.interactions if not children[item.id])
    for index, leaf in enumerate(leaves):
        calls = episode.lineage(leaf)
        yield Branch(index=index, calls=calls, shared=frozenset(seen.intersection(item.id for item in calls)))
        seen.update(item.id for item in calls)
