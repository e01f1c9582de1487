"""Convert an online session's calls to AReaL's export format: rows of token ids, masks, log-probabilities, rewards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.types import Episode, Interaction

_NOT_SAMPLED = -1
"""Policy version and turn of tokens that the policy did not sample."""


def trajectories(
    episode: Episode,
    rewards: Mapping[str, float],
    *,
    discount: float,
    style: Literal["individual", "concat"],
    drop_retry_orphans: bool,
) -> dict[str, Any]:
    """Return the rows to train on, by the ids of the policy's calls.

    `individual` makes one row per call, whose loss mask covers its own output. `concat` makes one row per leaf, whose
    mask covers the outputs of all calls that led to it. Rewards are discounted along the order of completion, as by
    AReaL.
    """
    # Upstreams' replies have no token ids, and calls marked as not trainable must not be trained elsewhere either.
    calls = [item for item in episode.interactions if item.trainable]
    if drop_retry_orphans:
        calls = without_retry_orphans(calls)
    returns = discounted(calls, rewards, discount)
    parents = {item.parent for item in calls}
    chosen = calls if style == "individual" else [item for item in calls if item.id not in parents]
    return {
        item.id: {
            "interaction_id": item.id,
            "messages": [message for call in episode.lineage(item) for message in (*call.messages, call.output)],
            "reward": returns[item.id],
            "tensor_dict": _row(episode, item, returns[item.id], rewards.get(item.id, 0.0), whole=style == "concat"),
        }
        for item in chosen
    }


def discounted(calls: Sequence[Interaction], rewards: Mapping[str, float], discount: float) -> dict[str, float]:
    """Return each call's `R_i = r_i + discount * R_(i+1)`, where `r_i` is 0 for a call without a reward."""
    returns: dict[str, float] = {}
    later = 0.0
    for item in reversed(calls):
        later = rewards.get(item.id, 0.0) + discount * later
        returns[item.id] = later
    return returns


def without_retry_orphans(calls: Sequence[Interaction]) -> list[Interaction]:
    """Return the calls without those that a client retried: of equal prompts, keep the continued ones, else the latest.

    This also drops intended samples of the same prompt (best of n), as they look the same as retries.
    """
    continued = {item.parent for item in calls}
    twins: dict[str, list[Interaction]] = {}
    for item in calls:
        # New messages and parent together are the whole prompt.
        twins.setdefault(json.dumps([item.parent, item.messages], sort_keys=True), []).append(item)
    kept = set()
    for same in twins.values():
        adopted = [item.id for item in same if item.id in continued]
        kept.update(adopted or [max(same, key=lambda item: item.seq).id])
    return [item for item in calls if item.id in kept]


def _row(episode: Episode, last: Interaction, total: float, own: float, *, whole: bool) -> dict[str, list[Any]]:
    """Build the row of a call; with `whole`, the mask also covers the policy's earlier outputs in its lineage."""
    row: dict[str, list[Any]] = {name: [] for name in ("input_ids", "loss_mask", "logprobs", "versions", "turn_ids")}

    def add(ids: Sequence[int], mask: int, logprobs: Sequence[float], versions: Sequence[int], turn: int) -> None:
        for name, values in zip(row, (ids, [mask] * len(ids), logprobs, versions, [turn] * len(ids)), strict=True):
            row[name].extend(values)

    turn = 0
    for item in episode.lineage(last):
        prompt, output = item.prompt_ids, item.output_ids
        add(prompt, 0, [0.0] * len(prompt), [_NOT_SAMPLED] * len(prompt), _NOT_SAMPLED)
        if item is last or (whole and item.trainable):
            add(output, 1, item.logprobs, list(item.output_versions), turn)
            turn += 1
        else:
            add(output, 0, [0.0] * len(output), [_NOT_SAMPLED] * len(output), _NOT_SAMPLED)
    return {**row, "attention_mask": [1] * len(row["input_ids"]), "rewards": [total], "original_rewards": [own]}
