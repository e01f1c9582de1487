"""Turn groups into a step's training signal: an advantage for every LLM call that is trained.

`training_signal` runs per group when it arrives: shaping, credit and baseline, then the filters. `finished` runs once
per step when all groups are known: normalisation over the step, then bounds of advantages. Errors and wrong results of
a component name that component and what it worked on.
"""

from __future__ import annotations

import math
import traceback
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.batching import Bounds, StepEstimator, TrainedCall
from agentrl_core.batching.credit import is_trained
from agentrl_core.batching.filters import has_signal
from agentrl_core.errors import AgentRLError, TrainingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agentrl_core.api.batching import AdvantageEstimator, Credit, Filter, Shaping
    from agentrl_core.types import Episode, Group


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

        def by_index(group: Group) -> int:
            return group.index

        union = _union(tuple(parts))
        sampled, groups = sorted(union.sampled, key=by_index), sorted(union.groups, key=by_index)
        return attrs.evolve(union, sampled=tuple(sampled), groups=tuple(groups))


def training_signal(
    groups: Sequence[Group],
    *,
    credit: Credit,
    advantage: AdvantageEstimator,
    filters: Sequence[Filter],
    shaping: Sequence[Shaping] = (),
) -> Signal:
    """Compute every trained interaction's advantage; drop groups that a filter refuses or with nothing to train.

    Raises `TrainingError` for a reward that is missing or not finite, and for a component that fails.
    """
    return _union([_group_signal(group, credit, advantage, filters, shaping) for group in groups])


def _union(parts: Sequence[Signal]) -> Signal:
    return Signal(
        sampled=tuple(group for part in parts for group in part.sampled),
        groups=tuple(group for part in parts for group in part.groups),
        advantages={name: value for part in parts for name, value in part.advantages.items()},
        dropped=sum((Counter(part.dropped) for part in parts), Counter()),
        with_signal=sum(part.with_signal for part in parts),
        left_out=sum((Counter(part.left_out) for part in parts), Counter()),
        shaped={name: value for part in parts for name, value in part.shaped.items()},
    )


def _group_signal(
    sampled: Group,
    credit: Credit,
    advantage: AdvantageEstimator,
    filters: Sequence[Filter],
    shaping: Sequence[Shaping],
) -> Signal:
    rewards = _shaped_rewards(sampled, shaping)
    group, advantages = sampled, _group_advantages(sampled, credit, advantage, rewards)
    dropped = ""
    left_out: Counter[str] = Counter()
    for item in filters:
        before = len(group.episodes)
        group, advantages = _filtered(item, group, advantages)
        if not group.episodes:
            dropped = _reason(item)
            break
        if len(group.episodes) < before:
            left_out[_reason(item)] += before - len(group.episodes)
    # For example, all calls were aborted or sampled by an upstream model.
    if not dropped and not advantages:
        dropped = "nothing_to_train"
    records = [episode.record.id for episode in sampled.episodes]
    return Signal(
        sampled=(sampled,),
        groups=() if dropped else (group,),
        advantages={} if dropped else advantages,
        dropped={dropped: 1} if dropped else {},
        with_signal=int(not dropped and has_signal(advantages)),
        left_out=left_out,
        shaped=dict(zip(records, rewards, strict=True)) if shaping else {},
    )


def _shaped_rewards(group: Group, shaping: Sequence[Shaping]) -> list[float]:
    """Return the rewards of a group's records, in their order, after all shapings."""
    rewards = [_reward(group, episode) for episode in group.episodes]
    for item in shaping:
        name = f"shaping '{getattr(item, 'name', '') or type(item).__name__}'"
        with _errors_of(name, _group_name(group)):
            found: Any = item.shape(group, tuple(rewards))
        _check_numbers(found, len(rewards), name, _group_name(group), "records")
        rewards = [float(value) for value in found]
    return rewards


def _reward(group: Group, episode: Episode) -> float:
    record = episode.record
    if record.reward is None:
        raise TrainingError(
            f"record {record.id} of group {group.id} has no reward, so its group has no baseline; "
            "expected scored records only"
        )
    if not math.isfinite(record.reward):
        raise TrainingError(
            f"record {record.id} of group {group.id} has the reward {record.reward}, so its group has no baseline; "
            "expected a finite number"
        )
    return record.reward


def _group_advantages(
    group: Group, credit: Credit, advantage: AdvantageEstimator, rewards: Sequence[float]
) -> dict[str, float]:
    """Return interaction id -> advantage, for the trained interactions of one group.

    With scalar rewards it is the record's advantage times the interaction's share. If any record of the group has
    rewards per interaction, every interaction gets a return (share x reward in records with a scalar), and the
    estimator's per-turn form compares the returns. `rewards` are the shaped rewards of the records.
    """
    trained = [[item.id for item in episode.interactions if is_trained(item)] for episode in group.episodes]
    paid = _Paid(group=group, credit=credit)
    who = f"advantage estimator {type(advantage).__name__}"
    if any(episode.record.rewards for episode in group.episodes):
        returns = [
            [by_name[name] for name in names]
            for by_name, names in zip(map(paid.returns, group.episodes, rewards), trained, strict=True)
        ]
        with _errors_of(who, _group_name(group)):
            of_turns: Any = [list(turns) for turns in advantage.turn_advantages(returns)]
        found = _as_numbers(of_turns, returns, who, group)
    else:
        with _errors_of(who, _group_name(group)):
            of_records: Any = list(advantage.advantages(rewards))
        (values,) = _as_numbers([of_records], [rewards], who, group)
        found = [
            [value * shares[name] for name in names]
            for value, shares, names in zip(values, map(paid.credited, group.episodes), trained, strict=True)
        ]
    advantages = {
        name: value
        for names, values in zip(trained, found, strict=True)
        for name, value in zip(names, values, strict=True)
    }
    for name, value in advantages.items():
        if not math.isfinite(value):
            raise TrainingError(
                f"advantage estimator {type(advantage).__name__} gave interaction {name} of group {group.id} (task "
                f"'{group.task_id}') the advantage {value}, from the rewards {', '.join(map(str, rewards)):.200}; "
                "expected a finite number"
            )
    return advantages


@attrs.frozen(kw_only=True)
class _Paid:
    """Credit of the calls of one group's records, with checks of what the credit returns."""

    group: Group
    credit: Credit

    def credited(self, episode: Episode) -> Mapping[str, float]:
        """Return the credit's interaction id -> share or return.

        Raises `TrainingError` unless there is a finite number for every interaction.
        """
        name, calls = f"credit {type(self.credit).__name__}", [item.id for item in episode.interactions]
        with _errors_of(name, _group_name(self.group)):
            found: Any = self.credit.credit(episode)
        if not isinstance(found, Mapping) or not all(call in found and _is_finite(found[call]) for call in calls):
            raise TrainingError(
                f"{name} returned {found!r:.200} for record {episode.record.id} of {_group_name(self.group)}; expected "
                f"a mapping from the id of each of its {len(calls)} interactions to a finite number"
            )
        return found

    def returns(self, episode: Episode, reward: float) -> Mapping[str, float]:
        """Return interaction id -> return.

        A scalar reward is distributed by shares. So is the amount by which shaping changed the sum of per-interaction
        rewards.
        """
        record = episode.record
        change = reward - (record.reward or 0.0)
        if record.rewards and not change:
            return self.credited(episode)
        # A credit returns shares instead of returns for a record without rewards per interaction.
        shares = self.credited(attrs.evolve(episode, record=attrs.evolve(record, rewards={})))
        if not record.rewards:
            return {name: share * reward for name, share in shares.items()}
        return {name: value + change * shares[name] for name, value in self.credited(episode).items()}


def _as_numbers(
    found: Sequence[Sequence[Any]], inputs: Sequence[Sequence[float]], who: str, group: Group
) -> list[list[float]]:
    """Return an estimator's result as floats; raise `TrainingError` unless it has one number for each of `inputs`.

    The numbers may be infinite or NaN; the caller reports those with the interaction's id.
    """
    fits = [len(values) for values in found] == [len(values) for values in inputs]
    if not fits or not all(hasattr(value, "__float__") for values in found for value in values):
        expected = " and ".join(str(len(values)) for values in inputs)
        raise TrainingError(
            f"{who} returned {found!r:.100} for {_group_name(group)}, from {inputs!r:.100}; expected {expected} numbers"
        )
    return [[float(value) for value in values] for values in found]


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
    with _errors_of(name, _group_name(group)):
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


def finished(signal: Signal, *, advantage: AdvantageEstimator, shaping: Sequence[Shaping] = ()) -> Signal:
    """Return the signal after the estimator's normalisation over the step and the shapings that bound advantages."""
    advantages = dict(signal.advantages)
    if isinstance(advantage, StepEstimator):
        names, calls = _trained_calls(signal)
        who = f"advantage estimator {type(advantage).__name__}"
        with _errors_of(who, "a step"):
            found = advantage.normalise(calls)
        _check_numbers(found, len(calls), who, "a step", "calls")
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


def _bounded(item: Bounds, group: Group, advantages: Mapping[str, float]) -> dict[str, float]:
    """Return a group's advantages as bounded by a shaping; raise `TrainingError` unless it returns one for each."""
    name = f"shaping '{type(item).__name__}'"
    with _errors_of(name, _group_name(group)):
        found = item.bound(group, advantages)
        values = [found[call] for call in advantages]
    _check_numbers(values, len(advantages), name, _group_name(group), "calls")
    return dict(zip(advantages, values, strict=True))


def _group_name(group: Group) -> str:
    """Return the name of a group for messages."""
    return f"group {group.id} of task '{group.task_id}'"


@contextmanager
def _errors_of(name: str, where: str) -> Iterator[None]:
    """Turn exceptions of a component into `TrainingError` with its name, its source line, and what it worked on."""
    try:
        yield
    # Errors of this project already say where they come from.
    except AgentRLError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
        raise TrainingError(f"{name} raised {what} on {where}") from error


def _check_numbers(found: Any, count: int, who: str, where: str, what: str) -> None:
    """Raise `TrainingError` unless `found` holds `count` finite numbers."""
    numbers = list(found) if isinstance(found, Sequence) or hasattr(found, "__array__") else None
    if numbers is None or len(numbers) != count or not all(_is_finite(value) for value in numbers):
        raise TrainingError(
            f"{who} returned {found!r:.100} for {where}; expected {count} finite numbers, one for each of its {what}"
        )


def _is_finite(value: Any) -> bool:
    # Components return numpy scalars, tensors and Decimals as well; all that `math.isfinite` takes are numbers.
    try:
        return math.isfinite(value)
    except TypeError:
        return False
