"""What the episodes of a step looked like, in numbers for its report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl_core.types import Episode, Group


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return means per scored record over `groups`, named `rollout/…`; empty for no records."""
    episodes = [episode for group in groups for episode in group.episodes]
    if not episodes:
        return {}
    totals = {
        "rollout/llm_calls_per_episode": sum(len(episode.interactions) for episode in episodes),
        "rollout/tool_calls_per_episode": sum(map(tool_calls, episodes)),
        "rollout/tool_errors_per_episode": sum(
            call.tool_errors for episode in episodes for call in episode.interactions
        ),
        "rollout/output_tokens_per_episode": sum(
            len(call.output_ids) for episode in episodes for call in episode.interactions
        ),
        "rollout/episode_s": sum(episode.record.finished_at - episode.record.started_at for episode in episodes),
    }
    return {name: total / len(episodes) for name, total in totals.items()}


def tool_calls(episode: Episode) -> int:
    """Return the number of tool calls that the policy made in an episode."""
    return sum(len(call.output.get("tool_calls") or ()) for call in episode.interactions)
