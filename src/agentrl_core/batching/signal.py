"""The training signal of a step: every interaction's advantage, and the groups that have none.

Credit first, then the group's baseline, then the filters.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.batching.credit import is_trained
from agentrl_core.batching.filters import has_signal
from agentrl_core.errors import AgentRLError, TrainingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentrl_core.batching.advantages import AdvantageEstimator
    from agentrl_core.batching.credit import Credit
    from agentrl_core.batching.filters import Filter
    from agentrl_core.types import Group


@attrs.frozen(kw_only=True)
class Signal:
    """What a step trains."""

    sampled: tuple[Group, ...] = ()
    """All groups that were looked at."""
    groups: tuple[Group, ...]
    """Those that passed every filter, in the order given, with the records that the filters left in them."""
    advantages: Mapping[str, float]
    """Interaction id -> advantage, of the trained interactions of `groups`."""
    dropped: Mapping[str, int]
    """Reason -> groups that a filter dropped."""
    with_signal: int
    """Groups among `groups` in which some advantage is not 0."""
    left_out: Mapping[str, int] = attrs.field(factory=dict)
    """Reason -> records of `groups` that a filter left out."""

    @classmethod
    def joined(cls, parts: Iterable[Signal]) -> Signal:
        """Put the signals of different groups together, in the order of the groups' submission."""
        parts = tuple(parts)

        def by_index(group: Group) -> int:
            return group.index

        return cls(
            sampled=tuple(sorted((group for part in parts for group in part.sampled), key=by_index)),
            groups=tuple(sorted((group for part in parts for group in part.groups), key=by_index)),
            advantages={name: value for part in parts for name, value in part.advantages.items()},
            dropped=sum((Counter(part.dropped) for part in parts), Counter()),
            with_signal=sum(part.with_signal for part in parts),
            left_out=sum((Counter(part.left_out) for part in parts), Counter()),
        )


def training_signal(
    groups: Sequence[Group], *, credit: Credit, advantage: AdvantageEstimator, filters: Sequence[Filter]
) -> Signal:
    """Give every trained interaction its advantage; drop the groups that a filter refuses, or with none to train."""
    kept: list[Group] = []
    advantages: dict[str, float] = {}
    dropped: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    with_signal = 0
    for sampled in groups:
        group, of_group = sampled, group_advantages(sampled, credit, advantage)
        reason = ""
        for item in filters:
            before = len(group.episodes)
            group, of_group = _filtered(item, group, of_group)
            if not group.episodes:
                reason = _reason(item)
                break
            if len(group.episodes) < before:
                left_out[_reason(item)] += before - len(group.episodes)
        if not reason and not of_group:
            reason = "nothing_to_train"
        if reason:
            dropped[reason] += 1
            continue
        kept.append(group)
        with_signal += has_signal(of_group)
        advantages.update(of_group)
    return Signal(
        sampled=tuple(groups),
        groups=tuple(kept),
        advantages=advantages,
        dropped=dict(dropped),
        with_signal=with_signal,
        left_out=dict(left_out),
    )


def _filtered(item: Filter, group: Group, advantages: dict[str, float]) -> tuple[Group, dict[str, float]]:
    """Return the group with the records that a filter keeps, none where it drops the group, and their advantages."""
    verdict = _asked(item, group, advantages)
    if verdict is True:
        return group, advantages
    names = {episode.record.id for episode in group.episodes}
    chosen: Collection[str] = () if verdict is False else verdict
    if unknown := [name for name in chosen if name not in names]:
        raise TrainingError(f"filter '{_reason(item)}' keeps {unknown[0]!r}, which is no record of group {group.id}")
    episodes = tuple(episode for episode in group.episodes if episode.record.id in chosen)
    trained = {call.id for episode in episodes for call in episode.interactions}
    return attrs.evolve(group, episodes=episodes), {k: v for k, v in advantages.items() if k in trained}


def _asked(item: Filter, group: Group, advantages: Mapping[str, float]) -> bool | Collection[str]:
    """Return what a filter says; raises `TrainingError` with its name where it raises, or says nothing of use."""
    name = f"filter '{_reason(item)}'"
    try:
        verdict: Any = item.keep(group, advantages)
    except AgentRLError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
        raise TrainingError(f"{name} raised {what} on group {group.id} of task '{group.task_id}'") from error
    if not isinstance(verdict, bool) and getattr(verdict, "ndim", None) == 0:  # numpy's and torch's
        verdict = verdict.item()
    if isinstance(verdict, bool):
        return verdict
    if isinstance(verdict, Collection) and not isinstance(verdict, str | bytes | Mapping):
        return verdict
    raise TrainingError(
        f"{name} returned {verdict!r:.60} for group {group.id}; expected True, False or the ids of the records to train"
    )


def _reason(item: Filter) -> str:
    """Return what a filter's drops are counted under; one that does not say has the name of its class."""
    return str(getattr(item, "reason", "") or type(item).__name__)


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
