"""Compute the metrics of a training step: means over its loss tokens, statistics of its episodes, ratio histogram."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import TYPE_CHECKING

import torch

from agentrl_core.api.compaction import compaction_of
from agentrl_core.batching.credit import is_trained
from agentrl_core.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from agentrl_core.api.losses import LossBatch
    from agentrl_core.batching.signal import Signal
    from agentrl_core.types import Episode, Group


RATIO_EDGES = (0.5, 0.8, 0.9, 0.98, 1.02, 1.1, 1.2, 1.5, 2.0)
"""Borders between the bins of the importance ratio: the usual clip bounds, and the range of on-policy rounding."""
RATIO_SHARES = (
    f"ratio_share_below_{RATIO_EDGES[0]}",
    *(f"ratio_share_{low}_{high}" for low, high in itertools.pairwise(RATIO_EDGES)),
    f"ratio_share_from_{RATIO_EDGES[-1]}",
)
_LAGS = 8
"""Number of lags with their own metric; larger lags are counted together."""


class Means:
    """Accumulator of (sum, count) pairs by name, over micro-batches, updates and ranks."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, float] = {}

    def add(self, name: str, total: Tensor | float, count: Tensor | float = 1.0) -> None:
        """Add one micro-batch's share."""
        self._sums[name] = self._sums.get(name, 0.0) + float(total)
        self._counts[name] = self._counts.get(name, 0.0) + float(count)

    def join(self, other: Means) -> None:
        """Add all sums and counts of `other`."""
        for name, total in other._sums.items():
            self.add(name, total, other._counts[name])

    def means(self) -> dict[str, float]:
        """Return name -> sum / count, without the names whose count is 0."""
        return {name: total / self._counts[name] for name, total in self._sums.items() if self._counts[name]}


def rollout_metrics(groups: Sequence[Group], signal: Signal, *, version: int) -> Mapping[str, float]:
    """Return rewards, group counts, calls, sampled tokens and lag over every record of `groups`.

    `version`: policy version of the current weights, from which lags are counted.
    """
    episodes = [episode for group in groups for episode in group.episodes]
    interactions = [item for episode in episodes for item in episode.interactions]
    rewards = [episode.record.reward for episode in episodes if episode.record.reward is not None]
    lags = [(version - of, count) for item in interactions if is_trained(item) for of, count in item.versions]
    tokens = sum(count for _, count in lags)
    mean = math.fsum(rewards) / max(len(rewards), 1)
    cut = sum(item.finish_reason is FinishReason.LENGTH for item in interactions)
    tool_calls = sum(len(item.output.get("tool_calls") or ()) for item in interactions)
    return {
        "reward/mean": mean,
        "reward/std": math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / max(len(rewards), 1)),
        **({"reward/shaped_mean": math.fsum(signal.shaped.values()) / len(signal.shaped)} if signal.shaped else {}),
        "rollout/groups": float(len(groups)),
        "rollout/groups_with_signal": float(signal.with_signal),
        **{f"rollout/groups_dropped/{reason}": float(count) for reason, count in signal.dropped.items()},
        **{f"rollout/records_left_out/{reason}": float(count) for reason, count in signal.left_out.items()},
        "rollout/tool_calls_per_episode": tool_calls / max(len(episodes), 1),
        "rollout/llm_calls_per_episode": len(interactions) / max(len(episodes), 1),
        **_compactions(episodes),
        "rollout/replies_cut": cut / max(len(interactions), 1),
        "rollout/tokens": float(tokens),
        "rollout/lag_mean": sum(lag * count for lag, count in lags) / max(tokens, 1),
        "rollout/lag_max": float(max((lag for lag, _ in lags), default=0)),
        **_lag_counts(lags),
    }


def _compactions(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return compactions and discarded tokens per episode; nothing if no history was compacted."""
    # Several calls may begin with the result of one compaction.
    notes = {
        (place, note.number): note
        for place, episode in enumerate(episodes)
        for item in episode.interactions
        if (note := compaction_of(item)) is not None
    }
    if not notes:
        return {}
    return {
        "rollout/compactions_per_episode": len(notes) / len(episodes),
        "rollout/tokens_discarded_per_episode": sum(note.tokens_discarded for note in notes.values()) / len(episodes),
    }


def _lag_counts(lags: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Count the tokens of each lag up to the largest; lags from `_LAGS` on are counted together."""
    counts = Counter[int]()
    for lag, count in lags:
        counts[min(lag, _LAGS)] += count
    names = [str(lag) for lag in range(_LAGS)] + [f"{_LAGS}_or_more"]
    return {f"rollout/tokens_of_lag/{names[lag]}": float(counts[lag]) for lag in range(max(counts, default=-1) + 1)}


def ratio_shares(batch: LossBatch) -> dict[str, tuple[float, float]]:
    """Return the histogram of the importance ratio rho = exp(log pi_theta - log mu) over the masked tokens.

    Bin name -> (tokens in the bin, all tokens), in the form of a calculator's metrics.
    """
    ratio = torch.exp(batch.logprobs.detach() - batch.behaviour_logprobs)
    edges = torch.tensor(RATIO_EDGES, dtype=ratio.dtype, device=ratio.device)
    bins = torch.bucketize(ratio, edges, right=True)
    counts = batch.mask.new_zeros(len(RATIO_EDGES) + 1).index_add(0, bins, batch.mask).tolist()
    return {name: (count, sum(counts)) for name, count in zip(RATIO_SHARES, counts, strict=True)}
