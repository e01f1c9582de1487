"""What a step reports about the episodes that it consumed, and how per-token sums become means."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from agentrl_core.batching.credit import is_trained

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from agentrl_core.batching.signal import Signal
    from agentrl_core.types import Group


class Means:
    """Adds up (sum, count) pairs by name."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, float] = {}

    def add(self, name: str, total: Tensor | float, count: Tensor | float = 1.0) -> None:
        """Add one micro-batch's share."""
        self._sums[name] = self._sums.get(name, 0.0) + float(total)
        self._counts[name] = self._counts.get(name, 0.0) + float(count)

    def means(self) -> dict[str, float]:
        """Name -> sum / count; names without a count are left out."""
        return {name: total / self._counts[name] for name, total in self._sums.items() if self._counts[name]}


def rollout_metrics(groups: Sequence[Group], signal: Signal, *, version: int) -> Mapping[str, float]:
    """Rewards, group counts, calls, sampled tokens and lag over every record of `groups`."""
    episodes = [episode for group in groups for episode in group.episodes]
    interactions = [item for episode in episodes for item in episode.interactions]
    rewards = [episode.record.reward for episode in episodes if episode.record.reward is not None]
    lags = [(version - of, count) for item in interactions if is_trained(item) for of, count in item.versions]
    tokens = sum(count for _, count in lags)
    mean = math.fsum(rewards) / max(len(rewards), 1)
    tool_calls = sum(len(item.output.get("tool_calls") or ()) for item in interactions)
    return {
        "reward/mean": mean,
        "reward/std": math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / max(len(rewards), 1)),
        "rollout/groups": float(len(groups)),
        "rollout/groups_with_signal": float(signal.with_signal),
        **{f"rollout/groups_dropped/{reason}": float(count) for reason, count in signal.dropped.items()},
        **{f"rollout/records_left_out/{reason}": float(count) for reason, count in signal.left_out.items()},
        "rollout/tool_calls_per_episode": tool_calls / max(len(episodes), 1),
        "rollout/llm_calls_per_episode": len(interactions) / max(len(episodes), 1),
        "rollout/tokens": float(tokens),
        "rollout/lag_mean": sum(lag * count for lag, count in lags) / max(tokens, 1),
        "rollout/lag_max": float(max((lag for lag, _ in lags), default=0)),
    }
