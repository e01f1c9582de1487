"""What shapings and estimators of whole steps say reaches the weights."""

import attrs
import pytest
import torch

from agentrl_core.batching.advantages import DrGRPO, ReinforcePP
from agentrl_core.batching.shaping import Rank
from agentrl_core.batching.signal import Signal


def rewarded(groups, reward):
    """The groups with one and the same reward for all records."""
    return [
        attrs.evolve(
            group,
            episodes=tuple(
                attrs.evolve(episode, record=attrs.evolve(episode.record, reward=reward)) for episode in group.episodes
            ),
        )
        for group in groups
    ]


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_rank_shaping_reaches_the_weights(learner, sampler, weights):
    groups = rewarded(sampler.groups(1, 4), 1.0)
    plain, ranked = learner(), learner(shaping=[Rank(by="tokens")])
    before = weights(plain)
    metrics = plain.step(groups, step=1, version=0)
    assert metrics["rollout/groups_with_signal"] == 0
    assert "reward/shaped_mean" not in metrics
    assert same(weights(plain), before)
    metrics = ranked.step(groups, step=1, version=0)
    assert metrics["rollout/groups_with_signal"] == 1
    assert (metrics["reward/mean"], metrics["reward/std"]) == (1.0, 0.0)
    assert metrics["reward/shaped_mean"] == pytest.approx(1.0)
    assert not same(weights(ranked), before)


def test_a_step_is_normalised_once_however_its_groups_arrived(learner, sampler, weights):
    groups = sampler.groups(3, 4)
    at_once, one_by_one, scaled, alone = (
        learner(advantage=advantage) for advantage in (ReinforcePP(), ReinforcePP(), ReinforcePP(scale=0.5), DrGRPO())
    )
    metrics = at_once.step(groups, step=1, version=0)
    parts = [one_by_one.training_signal([group]) for group in reversed(groups)]
    again = one_by_one.step(Signal.joined(parts), step=1, version=0)
    assert again["loss/grad_norm"] == metrics["loss/grad_norm"]
    assert same(weights(one_by_one), weights(at_once))
    half = scaled.step(groups, step=1, version=0)["loss/grad_norm"]
    assert half == pytest.approx(metrics["loss/grad_norm"] / 2, rel=1e-4)
    assert alone.step(groups, step=1, version=0)["loss/grad_norm"] != pytest.approx(metrics["loss/grad_norm"], rel=0.1)
