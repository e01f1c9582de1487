"""Credit: how an episode's reward reaches each of its LLM calls.

A record with a scalar reward gives every interaction a *share* of the record's advantage; a record whose
workflow returned a reward per interaction gives every interaction a *return* of its own. gamma is
`rollout.agent.turn_discount`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs
from attrs import field, validators

from agentrl_core.errors import TrainingError
from agentrl_core.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.types import Episode, Interaction


class Credit(Protocol):
    """Distributes one record's reward over its interactions."""

    def credit(self, episode: Episode) -> Mapping[str, float]:
        """Interaction id -> share of the record's advantage; or -> return, where `record.rewards` is not empty.

        Every interaction has an entry, trainable or not.
        """
        ...


@attrs.frozen(kw_only=True)
class TreeCredit:
    """Credit along the tree of continuations, so that no branch pays or discounts another.

    Scalar: the leaf of every branch gets 1, an earlier interaction gamma^d, d being the turns from it to its
    latest descendant (the one that ended last). Planner and sub-agents, contexts that were reset and forks are
    all paid. Per interaction: R(n) = r(n) + gamma * sum of R over n's children, r being 0 where none was given.
    """

    turn_discount: float = field(default=1.0, validator=[validators.ge(0.0), validators.le(1.0)])

    def credit(self, episode: Episode) -> dict[str, float]:
        """Shares or returns of all interactions."""
        children = children_of(episode)
        rewards = episode.record.rewards
        latest: dict[str, tuple[int, int]] = {}  # (seq of the latest descendant, turns to it)
        returns: dict[str, float] = {}
        for node in reversed(episode.interactions):  # children complete after their parent
            below = children[node.id]
            latest[node.id] = max(((latest[c][0], latest[c][1] + 1) for c in below), default=(node.seq, 0))
            returns[node.id] = rewards.get(node.id, 0.0) + self.turn_discount * sum(returns[c] for c in below)
        if rewards:
            return returns
        return {name: self.turn_discount**turns for name, (_, turns) in latest.items()}


@attrs.frozen(kw_only=True)
class InsertionOrderCredit:
    """AReaL's chain over the policy's calls of a record in their order, whatever continues what.

    R_i = r_i + gamma * R_(i+1). A scalar is the reward of the last one, so a share is gamma^(n-1-i). Calls of other
    models are no links of the chain: a reward that one was given goes to the call before it.
    """

    turn_discount: float = field(default=1.0, validator=[validators.ge(0.0), validators.le(1.0)])

    def credit(self, episode: Episode) -> dict[str, float]:
        """Shares or returns of all interactions."""
        policys = [item.id for item in episode.interactions if item.trainable]
        given = episode.record.rewards or dict.fromkeys(policys[-1:], 1.0)
        returns: dict[str, float] = {}
        later = 0.0
        for node in reversed(episode.interactions):
            later = given.get(node.id, 0.0) + (self.turn_discount if node.trainable else 1.0) * later
            returns[node.id] = later
        return returns


def children_of(episode: Episode) -> dict[str, list[str]]:
    """Interaction id -> ids of those that continue it, in order of completion.

    Raises `TrainingError` where a parent is not an earlier interaction of the same record.
    """
    children: dict[str, list[str]] = {}
    for node in episode.interactions:
        if node.parent is not None:
            if node.parent not in children:
                raise TrainingError(
                    f"record {episode.record.id}: interaction {node.id} continues {node.parent}, "
                    "which is not an earlier interaction of that record; the record cannot be trained"
                )
            children[node.parent].append(node.id)
        children[node.id] = []
    return children


def is_trained(interaction: Interaction) -> bool:
    """Whether the output belongs to the policy and is whole: not by an upstream model, not aborted."""
    return (
        interaction.trainable and interaction.finish_reason is not FinishReason.ABORT and bool(interaction.output_ids)
    )
