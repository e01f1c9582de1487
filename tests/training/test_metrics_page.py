"""The page about metrics names every metric that steps report, and no others."""

import json
import re
from pathlib import Path

import attrs
import pytest

from agentrl_core.api.compaction import COMPACTION
from agentrl_core.batching.filters import ZeroVariance

PAGE = Path(__file__).parents[2] / "cookbook/metrics.md"
OF_THE_LOOP = {
    "rollout/answers_found",
    "rollout/calls_with_unseen_tools",
    "rollout/tool_calls_failed",
    "rollout/groups_topped_up",
    "rollout/groups_stale",
    "rollout/groups_unusable",
    "rollout/groups_requeued",
    "rollout/token_age_max",
    "rollout/token_age_min",
    "rollout/tokens_discarded",
    "rollout/tokens_per_s",
    "time/rollout_s",
    "time/sample_idle_s",
    "time/step_s",
    "time/train_idle_s",
    "weights/bytes",
    "weights/canary_change",
    "weights/canary_gap",
    "weights/seconds",
    "weights/stall_s",
}
"""What the loop adds to the learner's metrics."""


SHORTENED = {
    "name": "window",
    "number": 1,
    "compactions": 1,
    "messages": (4, 2),
    "tokens": (90, 30),
    "context_length": 99,
}


def described():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([a-z_]+/[^`]+)`", row.split(" | ")[0])]


def covers(pattern, name):
    return name == pattern or (pattern.endswith("…") and name.startswith(pattern[:-1]))


@pytest.fixture
def reported(learner, sampler):
    """Metrics of a step in which everything happens: dropped groups, records left out, stale tokens, compactions."""

    class FirstThree:
        reason = "too_many"

        def keep(self, group, advantages):
            return [episode.record.id for episode in group.episodes[:3]]

    fresh, stale, flat = attrs.evolve(sampler, top_k=30).groups(count=3)
    old = [
        attrs.evolve(
            episode,
            interactions=tuple(attrs.evolve(i, versions=((0, len(i.output_ids)),)) for i in episode.interactions),
        )
        for episode in stale.episodes
    ]
    new = [
        attrs.evolve(
            episode,
            interactions=tuple(
                attrs.evolve(i, versions=((2, len(i.output_ids)),), requested={COMPACTION: SHORTENED})
                for i in episode.interactions
            ),
        )
        for episode in fresh.episodes
    ]
    same = [attrs.evolve(episode, record=attrs.evolve(episode.record, reward=1.0)) for episode in flat.episodes]
    groups = [
        attrs.evolve(group, episodes=tuple(episodes)) for group, episodes in ((fresh, new), (stale, old), (flat, same))
    ]
    return set(learner(filters=[ZeroVariance(), FirstThree()]).step(groups, step=1, version=2))


def test_every_metric_of_a_step_is_described_and_every_description_is_of_one(reported):
    names, patterns = reported | OF_THE_LOOP, described()
    assert len(patterns) == len(set(patterns))
    assert sorted(name for name in names if not any(covers(pattern, name) for pattern in patterns)) == []
    assert sorted(pattern for pattern in patterns if not any(covers(pattern, name) for name in names)) == []


def test_metrics_are_numbers_that_json_can_tell(learner, sampler):
    metrics = learner().step(sampler.groups(), step=1, version=0)
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics
