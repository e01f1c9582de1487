"""The training signal of a step: every interaction's advantage, and the groups that have none.

Credit first, then the group's baseline, then the filters.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs

from agentrl_core.batching.credit import is_trained
from agentrl_core.batching.filters import has_signal
from agentrl_core.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.batching.advantages import AdvantageEstimator
    from agentrl_core.batching.credit import Credit
    from agentrl_core.batching.filters import Filter
    from agentrl_core.types import Group


@attrs.frozen(kw_only=True)
class Signal:
    """What a step trains."""

    groups: tuple[Group, ...]
    """Those that passed every filter, in the order given."""
    advantages: Mapping[str, float]
    """Interaction id -> advantage, of the trained interactions of `groups`."""
    dropped: Mapping[str, int]
    """Reason -> groups that a filter dropped."""
    with_signal: int
    """Groups among `groups` in which some advantage is not 0."""


def training_signal(
    groups: Sequence[Group], *, credit: Credit, advantage: AdvantageEstimator, filters: Sequence[Filter]
) -> Signal:
    """Give every trained interaction its advantage; drop the groups that a filter refuses, or with none to train."""
    kept, advantages = [], {}
    dropped: Counter[str] = Counter()
    with_signal = 0
    for group in groups:
        of_group = group_advantages(group, credit, advantage)
        reason = next((item.reason for item in filters if not item.keep(group, of_group)), None)
        if reason is None and not of_group:
            reason = "nothing_to_train"
        if reason is not None:
            dropped[reason] += 1
            continue
        kept.append(group)
        with_signal += has_signal(of_group)
        advantages.update(of_group)
    return Signal(groups=tuple(kept), advantages=advantages, dropped=dict(dropped), with_signal=with_signal)


def group_advantages(group: Group, credit: Credit, advantage: AdvantageEstimator) -> dict[str, float]:
    """Interaction id -> advantage, of the trained interactions of one group.

    Scalar rewards: the record's advantage times the interaction's share. Where any record of the group was
    rewarded per interaction, every interaction has a return (share x reward in a record with a scalar) and the
    estimator's per-turn form compares those.
    """
    shares_of = [credit.credit(episode) for episode in group.episodes]
    trained = [[item.id for item in episode.interactions if is_trained(item)] for episode in group.episodes]
    rewards = [_reward(group, index) for index in range(len(group.episodes))]
    per_turn = [bool(episode.record.rewards) for episode in group.episodes]
    if any(per_turn):
        returns = [
            [shares[name] * (1.0 if own else reward) for name in names]
            for shares, names, own, reward in zip(shares_of, trained, per_turn, rewards, strict=True)
        ]
        by_turn = advantage.turn_advantages(returns)
    else:
        by_record = advantage.advantages(rewards)
        by_turn = [
            [value * shares[name] for name in names]
            for value, shares, names in zip(by_record, shares_of, trained, strict=True)
        ]
    return {
        name: value
        for names, values in zip(trained, by_turn, strict=True)
        for name, value in zip(names, values, strict=True)
    }


def _reward(group: Group, index: int) -> float:
    record = group.episodes[index].record
    if record.reward is None:
        raise TrainingError(
            f"record {record.id} of group {group.id} has no reward, so its group has no baseline; "
            "a store gives scored records only"
        )
    return record.reward
