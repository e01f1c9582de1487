"""From the rewards of a group to the advantage of each trained interaction: shaping, credit, the baseline."""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.batching.credit import is_trained
from agentrl_core.errors import AgentRLError, TrainingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentrl_core.batching.advantages import AdvantageEstimator
    from agentrl_core.batching.credit import Credit
    from agentrl_core.batching.shaping import Shaping
    from agentrl_core.types import Episode, Group


def shaped_rewards(group: Group, shaping: Sequence[Shaping] = ()) -> list[float]:
    """The rewards of a group's records, in their order, as the shapings leave them.

    Raises `TrainingError` for a reward that is missing or not finite.
    """
    rewards = [_reward(group, episode) for episode in group.episodes]
    for item in shaping:
        name = f"shaping '{getattr(item, 'name', '') or type(item).__name__}'"
        with blamed(name, group):
            found: Any = item.shape(group, tuple(rewards))
        check_numbers(found, len(rewards), name, f"group {group.id} of task '{group.task_id}'", "records")
        rewards = [float(value) for value in found]
    return rewards


def group_advantages(
    group: Group, credit: Credit, advantage: AdvantageEstimator, rewards: Sequence[float] | None = None
) -> dict[str, float]:
    """Interaction id -> advantage, of the trained interactions of one group.

    Scalar rewards: the record's advantage times the interaction's share. Where any record of the group was
    rewarded per interaction, every interaction has a return (share x reward in a record with a scalar) and the
    estimator's per-turn form compares those. `rewards` are the records' shaped ones; None: as they were given.
    """
    rewards = shaped_rewards(group) if rewards is None else rewards
    trained = [[item.id for item in episode.interactions if is_trained(item)] for episode in group.episodes]
    paid = list(zip(group.episodes, rewards, trained, strict=True))
    if any(episode.record.rewards for episode in group.episodes):
        returns = [(_returns(episode, reward, credit), names) for episode, reward, names in paid]
        found = advantage.turn_advantages([[by_name[name] for name in names] for by_name, names in returns])
    else:
        found = [
            [value * shares[name] for name in names]
            for value, shares, (_, _, names) in zip(
                advantage.advantages(rewards), map(credit.credit, group.episodes), paid, strict=True
            )
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


def _returns(episode: Episode, reward: float, credit: Credit) -> Mapping[str, float]:
    """Interaction id -> return; what shaping changed of the record's sum is paid by shares, as a scalar is."""
    record = episode.record
    change = reward - (record.reward or 0.0)
    if record.rewards and not change:
        return credit.credit(episode)
    shares = credit.credit(attrs.evolve(episode, record=attrs.evolve(record, rewards={})))
    if not record.rewards:
        return {name: share * reward for name, share in shares.items()}
    return {name: value + change * shares[name] for name, value in credit.credit(episode).items()}


def _reward(group: Group, episode: Episode) -> float:
    record = episode.record
    if record.reward is None:
        raise TrainingError(
            f"record {record.id} of group {group.id} has no reward, so its group has no baseline; "
            "a store gives scored records only"
        )
    if not math.isfinite(record.reward):
        raise TrainingError(
            f"record {record.id} of group {group.id} has the reward {record.reward}, so its group has no baseline; "
            "expected a finite number"
        )
    return record.reward


@contextmanager
def blamed(name: str, group: Group) -> Iterator[None]:
    """Name the component and the group in what a component raises."""
    try:
        yield
    except AgentRLError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
        raise TrainingError(f"{name} raised {what} on group {group.id} of task '{group.task_id}'") from error


def check_numbers(found: Any, count: int, who: str, where: str, what: str) -> None:
    """Raise `TrainingError` unless `found` holds `count` finite numbers."""
    numbers = list(found) if isinstance(found, Sequence) or hasattr(found, "__array__") else None
    if numbers is None or len(numbers) != count or not all(_is_finite(value) for value in numbers):
        raise TrainingError(
            f"{who} returned {found!r:.100} for {where}; expected {count} finite numbers, of its {what}"
        )


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except TypeError:
        return False
