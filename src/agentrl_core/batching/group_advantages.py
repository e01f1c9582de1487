"""Compute the advantages of one group: shape its rewards, assign credit to calls, subtract the baseline.

Errors and wrong results of a component name that component and the group.
"""

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

    from agentrl_core.api.batching import AdvantageEstimator, Credit, Shaping
    from agentrl_core.types import Episode, Group


def shaped_rewards(group: Group, shaping: Sequence[Shaping] = ()) -> list[float]:
    """Return the rewards of a group's records, in their order, after all shapings.

    Raises `TrainingError` for a reward that is missing or not finite, and for a shaping that fails.
    """
    rewards = [_reward(group, episode) for episode in group.episodes]
    for item in shaping:
        name = f"shaping '{getattr(item, 'name', '') or type(item).__name__}'"
        with errors_of(name, told(group)):
            found: Any = item.shape(group, tuple(rewards))
        check_numbers(found, len(rewards), name, told(group), "records")
        rewards = [float(value) for value in found]
    return rewards


def group_advantages(
    group: Group, credit: Credit, advantage: AdvantageEstimator, rewards: Sequence[float] | None = None
) -> dict[str, float]:
    """Return interaction id -> advantage, for the trained interactions of one group.

    With scalar rewards it is the record's advantage times the interaction's share. If any record of the group has
    rewards per interaction, every interaction gets a return (share x reward in records with a scalar), and the
    estimator's per-turn form compares the returns. `rewards` are the shaped rewards of the records; None: not shaped.
    Raises `TrainingError` if credit or estimator fails, or an advantage is not finite.
    """
    rewards = shaped_rewards(group) if rewards is None else rewards
    trained = [[item.id for item in episode.interactions if is_trained(item)] for episode in group.episodes]
    paid = _Paid(group=group, credit=credit)
    who = f"advantage estimator {type(advantage).__name__}"
    if any(episode.record.rewards for episode in group.episodes):
        returns = [
            [by_name[name] for name in names]
            for by_name, names in zip(map(paid.returns, group.episodes, rewards), trained, strict=True)
        ]
        with errors_of(who, told(group)):
            of_turns: Any = [list(turns) for turns in advantage.turn_advantages(returns)]
        found = _as_numbers(of_turns, returns, who, group)
    else:
        with errors_of(who, told(group)):
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
        with errors_of(name, told(self.group)):
            found: Any = self.credit.credit(episode)
        if not isinstance(found, Mapping) or not all(call in found and _is_finite(found[call]) for call in calls):
            raise TrainingError(
                f"{name} returned {found!r:.200} for record {episode.record.id} of {told(self.group)}; expected a "
                f"mapping from the id of each of its {len(calls)} interactions to a finite number"
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
    found: Sequence[Sequence[Any]], given: Sequence[Sequence[float]], who: str, group: Group
) -> list[list[float]]:
    """Return an estimator's result as floats; raise `TrainingError` unless it has one number for each of `given`.

    The numbers may be infinite or NaN; the caller reports those with the interaction's id.
    """
    fits = [len(values) for values in found] == [len(values) for values in given]
    if not fits or not all(hasattr(value, "__float__") for values in found for value in values):
        expected = " and ".join(str(len(values)) for values in given)
        raise TrainingError(
            f"{who} returned {found!r:.100} for {told(group)}, from {given!r:.100}; expected {expected} numbers"
        )
    return [[float(value) for value in values] for values in found]


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


def told(group: Group) -> str:
    """Return the name of a group for messages."""
    return f"group {group.id} of task '{group.task_id}'"


@contextmanager
def errors_of(name: str, where: str) -> Iterator[None]:
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


def check_numbers(found: Any, count: int, who: str, where: str, what: str) -> None:
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
