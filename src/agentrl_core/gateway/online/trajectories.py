"""Write a session's calls as AReaL exports them: a row of token ids, masks and rewards for each call or each leaf."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.types import Episode, Interaction

_NOT_SAMPLED = -1
"""Policy version, and turn, of a prompt's tokens."""


def trajectories(
    episode: Episode,
    rewards: Mapping[str, float],
    *,
    discount: float,
    style: Literal["individual", "concat"],
    drop_retry_orphans: bool,
) -> dict[str, Any]:
    """Map the ids of the policy's calls to their rows.

    `individual`: a row for each call, of which its own output is trained. `concat`: for each leaf, with the outputs
    of all calls that led to it. Rewards are discounted as AReaL does, along the order of completion.
    """
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
    """Return `R_i = r_i + discount * R_(i+1)`, `r_i` being 0 where no reward came."""
    returns: dict[str, float] = {}
    later = 0.0
    for item in reversed(calls):
        later = rewards.get(item.id, 0.0) + discount * later
        returns[item.id] = later
    return returns


def without_retry_orphans(calls: Sequence[Interaction]) -> list[Interaction]:
    """Leave out calls that a client has asked for again: of equal prompts, those that were continued, else the latest.

    Two samples of one prompt that were wanted look the same.
    """
    continued = {item.parent for item in calls}
    twins: dict[str, list[Interaction]] = {}
    for item in calls:
        twins.setdefault(json.dumps([item.parent, item.messages], sort_keys=True), []).append(item)
    kept = set()
    for same in twins.values():
        adopted = [item.id for item in same if item.id in continued]
        kept.update(adopted or [max(same, key=lambda item: item.seq).id])
    return [item for item in calls if item.id in kept]


def _row(episode: Episode, last: Interaction, total: float, own: float, *, whole: bool) -> dict[str, list[Any]]:
    """Make the row of a call; `whole`: earlier outputs of the policy count as its output, too."""
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
