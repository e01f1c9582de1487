"""Credit assignment: distribute an episode's reward over its LLM calls.

In a record with a scalar reward every interaction gets a *share* of the record's advantage. In a record whose workflow
returned rewards per interaction every interaction gets a *return*. gamma is `rollout.agent.turn_discount`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs
from attrs import field, validators

from agentrl_core.errors import TrainingError
from agentrl_core.types import FinishReason

if TYPE_CHECKING:
    from agentrl_core.types import Episode, Interaction


@attrs.frozen(kw_only=True)
class TreeCredit:
    """Credit along the tree of interactions, in which a call's parent is the call that it continues.

    Scalar reward: the leaf of every branch gets 1; an earlier interaction gets gamma^d, where d is the number of turns
    to its latest descendant (the one that ended last). So planner and sub-agents, reset contexts and forks all get
    credit, and no branch discounts another. Rewards per interaction: R(n) = r(n) + gamma * sum of R over the children
    of n, with r(n) = 0 where no reward was given.

    A record has K branches, one for each trained interaction that no trained one continues; an interaction lies on m of
    them, 1 <= m <= K. Its tokens are in the loss once in any case, with the weight that `branches` says:

    - `full`: 1. Each sampled token has the record's whole advantage, so a record with more branches, which has sampled
      more tokens, weighs more in a mean over tokens.
    - `shared`: m / K, so the loss is the mean over the branches of each branch's own loss, and what they share is still
      computed once. All branches together weigh as much as one would, and what all of them go back to keeps the weight
      1. It goes by branches, not by their lengths: a short branch after a compaction counts as much as a long one
      before it.
    """

    turn_discount: float = field(default=1.0, validator=[validators.ge(0.0), validators.le(1.0)])
    branches: Literal["full", "shared"] = field(default="full", validator=validators.in_(("full", "shared")))
    """Weight of a scalar reward in a record with several branches; rewards per interaction stay as they are given."""

    def credit(self, episode: Episode) -> dict[str, float]:
        """Return the shares or returns of all interactions."""
        children = children_of(episode)
        rewards = episode.record.rewards
        # Interaction id -> (seq of its latest descendant, turns to that one).
        latest: dict[str, tuple[int, int]] = {}
        returns: dict[str, float] = {}
        # Children complete after their parent, so in reverse order they come first.
        for node in reversed(episode.interactions):
            below = children[node.id]
            latest[node.id] = max(((latest[c][0], latest[c][1] + 1) for c in below), default=(node.seq, 0))
            returns[node.id] = rewards.get(node.id, 0.0) + self.turn_discount * sum(returns[c] for c in below)
        if rewards:
            return returns
        weights = branch_weights(episode) if self.branches == "shared" else {}
        return {name: self.turn_discount**turns * weights.get(name, 1.0) for name, (_, turns) in latest.items()}


@attrs.frozen(kw_only=True)
class InsertionOrderCredit:
    """AReaL's credit: one chain over the policy's calls of a record in their order, whatever their parents are.

    R_i = r_i + gamma * R_(i+1). A scalar is the reward of the last call, so call i of n gets the share gamma^(n-1-i).
    Calls of other models are not part of the chain: a reward given to one goes to the policy's call before it.
    """

    turn_discount: float = field(default=1.0, validator=[validators.ge(0.0), validators.le(1.0)])

    def credit(self, episode: Episode) -> dict[str, float]:
        """Return the shares or returns of all interactions."""
        policys = [item.id for item in episode.interactions if item.trainable]
        given = episode.record.rewards or dict.fromkeys(policys[-1:], 1.0)
        returns: dict[str, float] = {}
        later = 0.0
        for node in reversed(episode.interactions):
            # A reward of another model's call passes to the policy's call before it without a discount.
            later = given.get(node.id, 0.0) + (self.turn_discount if node.trainable else 1.0) * later
            returns[node.id] = later
        return returns


def branch_weights(episode: Episode) -> dict[str, float]:
    """Return interaction id -> share of the record's branches that contain the interaction.

    A branch ends with a trained interaction that no trained one continues: replies of other models and aborted ones are
    no branches, and have the share 0 where no trained interaction continues them.
    """
    children = children_of(episode)
    counts: dict[str, int] = {}
    # Children complete after their parent, so in reverse order they come first.
    for node in reversed(episode.interactions):
        counts[node.id] = sum(counts[child] for child in children[node.id]) or int(is_trained(node))
    branches = sum(counts[node.id] for node in episode.interactions if node.parent is None)
    return {name: count / max(branches, 1) for name, count in counts.items()}


def children_of(episode: Episode) -> dict[str, list[str]]:
    """Return interaction id -> ids of the interactions that continue it, in order of completion.

    Raises `TrainingError` if a parent is not an earlier interaction of the same record.
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
    """Return whether an output is trained: sampled by the policy (not an upstream model), not aborted, not empty."""
    return (
        interaction.trainable and interaction.finish_reason is not FinishReason.ABORT and bool(interaction.output_ids)
    )
