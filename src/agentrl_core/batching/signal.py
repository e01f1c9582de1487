"""Collect a step's training signal: the groups that pass the filters, with an advantage per interaction.

`training_signal` runs per group when it arrives: shaping and credit, the group's baseline, then the filters.
`finished` runs once per step when all groups are known: normalisation over the step, then bounds of advantages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.batching import Bounds, StepEstimator, TrainedCall
from agentrl_core.batching.credit import is_trained
from agentrl_core.batching.filters import has_signal
from agentrl_core.batching.group_advantages import check_numbers, errors_of, group_advantages, shaped_rewards, told
from agentrl_core.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentrl_core.api.batching import AdvantageEstimator, Credit, Filter, Shaping
    from agentrl_core.types import Group


@attrs.frozen(kw_only=True)
class Signal:
    """Groups and advantages of a step, with counts of what the filters removed."""

    sampled: tuple[Group, ...] = ()
    """All groups, including dropped ones."""
    groups: tuple[Group, ...]
    """Groups that passed every filter, in the given order, with the records that the filters kept."""
    advantages: Mapping[str, float]
    """Interaction id -> advantage, of the trained interactions of `groups`."""
    dropped: Mapping[str, int]
    """Reason -> number of groups that a filter dropped."""
    with_signal: int
    """Number of `groups` with an advantage that is not 0."""
    left_out: Mapping[str, int] = attrs.field(factory=dict)
    """Reason -> number of records of `groups` that a filter left out."""
    shaped: Mapping[str, float] = attrs.field(factory=dict)
    """Record id -> shaped reward, of all records of `sampled`; empty without `shaping`."""

    @classmethod
    def joined(cls, parts: Iterable[Signal]) -> Signal:
        """Return the union of the signals of different groups, in the order in which the groups were submitted."""
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
            shaped={name: value for part in parts for name, value in part.shaped.items()},
        )


def training_signal(
    groups: Sequence[Group],
    *,
    credit: Credit,
    advantage: AdvantageEstimator,
    filters: Sequence[Filter],
    shaping: Sequence[Shaping] = (),
) -> Signal:
    """Compute every trained interaction's advantage; drop groups that a filter refuses or with nothing to train."""
    kept: list[Group] = []
    advantages: dict[str, float] = {}
    dropped: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    shaped: dict[str, float] = {}
    with_signal = 0
    for sampled in groups:
        rewards = shaped_rewards(sampled, shaping)
        if shaping:
            shaped |= {episode.record.id: value for episode, value in zip(sampled.episodes, rewards, strict=True)}
        group, of_group = sampled, group_advantages(sampled, credit, advantage, rewards)
        reason = ""
        for item in filters:
            before = len(group.episodes)
            group, of_group = _filtered(item, group, of_group)
            if not group.episodes:
                reason = _reason(item)
                break
            if len(group.episodes) < before:
                left_out[_reason(item)] += before - len(group.episodes)
        # For example, all calls were aborted or sampled by an upstream model.
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
        shaped=shaped,
    )


def finished(signal: Signal, *, advantage: AdvantageEstimator, shaping: Sequence[Shaping] = ()) -> Signal:
    """Return the signal after the estimator's normalisation over the step and the shapings that bound advantages."""
    advantages = dict(signal.advantages)
    if isinstance(advantage, StepEstimator):
        names, calls = _trained_calls(signal)
        who = f"advantage estimator {type(advantage).__name__}"
        with errors_of(who, "a step"):
            found = advantage.normalise(calls)
        check_numbers(found, len(calls), who, "a step", "calls")
        advantages |= dict(zip(names, found, strict=True))
    with_signal = 0
    for group in signal.groups:
        trained = (item.id for episode in group.episodes for item in episode.interactions)
        of_group = {name: advantages[name] for name in trained if name in advantages}
        for item in shaping:
            if isinstance(item, Bounds):
                of_group = _bounded(item, group, of_group)
        advantages |= of_group
        with_signal += has_signal(of_group)
    return attrs.evolve(signal, advantages=advantages, with_signal=with_signal)


def _bounded(item: Bounds, group: Group, advantages: Mapping[str, float]) -> dict[str, float]:
    """Return a group's advantages as bounded by a shaping; raise `TrainingError` unless it returns one for each."""
    name = f"shaping '{type(item).__name__}'"
    with errors_of(name, told(group)):
        found = item.bound(group, advantages)
        values = [found[call] for call in advantages]
    check_numbers(values, len(advantages), name, told(group), "calls")
    return dict(zip(advantages, values, strict=True))


def _trained_calls(signal: Signal) -> tuple[list[str], list[TrainedCall]]:
    """Return the ids of the step's trained interactions, and the estimator's input for them."""
    names: list[str] = []
    calls: list[TrainedCall] = []
    records = [(index, episode) for index, group in enumerate(signal.groups) for episode in group.episodes]
    for record, (group, episode) in enumerate(records):
        for item in episode.interactions:
            if is_trained(item) and item.id in signal.advantages:
                names.append(item.id)
                value, tokens = signal.advantages[item.id], len(item.output_ids)
                calls.append(TrainedCall(advantage=value, tokens=tokens, record=record, group=group))
    return names, calls


def _filtered(item: Filter, group: Group, advantages: dict[str, float]) -> tuple[Group, dict[str, float]]:
    """Return the group with the records that a filter keeps, and their advantages; no records if it drops the group."""
    verdict = _asked(item, group, advantages)
    if verdict is True:
        return group, advantages
    names = {episode.record.id for episode in group.episodes}
    chosen: Collection[str] = () if verdict is False else verdict
    if unknown := [name for name in chosen if name not in names]:
        raise TrainingError(
            f"filter '{_reason(item)}' keeps {unknown[0]!r}, which is no record of group {group.id}; expected ids of "
            "the group's records"
        )
    episodes = tuple(episode for episode in group.episodes if episode.record.id in chosen)
    trained = {call.id for episode in episodes for call in episode.interactions}
    return attrs.evolve(group, episodes=episodes), {k: v for k, v in advantages.items() if k in trained}


def _asked(item: Filter, group: Group, advantages: Mapping[str, float]) -> bool | Collection[str]:
    """Return a filter's verdict; raise `TrainingError` with the filter's name if it raises or returns another type."""
    name = f"filter '{_reason(item)}'"
    with errors_of(name, told(group)):
        verdict: Any = item.keep(group, advantages)
    # Booleans of numpy and torch.
    if not isinstance(verdict, bool) and getattr(verdict, "ndim", None) == 0:
        verdict = verdict.item()
    if isinstance(verdict, bool):
        return verdict
    if isinstance(verdict, Collection) and not isinstance(verdict, str | bytes | Mapping):
        return verdict
    raise TrainingError(
        f"{name} returned {verdict!r:.60} for group {group.id}; expected True, False or the ids of the records to train"
    )


def _reason(item: Filter) -> str:
    """Return the name under which a filter's drops are counted: its `reason`, else its class name."""
    return str(getattr(item, "reason", "") or type(item).__name__)
