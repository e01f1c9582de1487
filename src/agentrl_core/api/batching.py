"""Protocols of what turns rewards into advantages: shapings, advantage estimators, credits and filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import attrs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from agentrl_core.types import Episode, Group


class AdvantageEstimator(Protocol):
    """Function from one group's rewards to advantages; registered under the kind `advantages`.

    An estimator may have the attribute `compares_groups`: True if a group of equal rewards has a signal too, because it
    is compared with others. A run then says that the filter `zero_variance` drops such groups.
    """

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """Return one advantage per record, in the order of `rewards`."""
        ...

    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """Return one advantage per interaction, nested like `returns`; a record may have no interaction."""
        ...


@attrs.frozen(kw_only=True)
class TrainedCall:
    """Trained interaction of a step, as input of `StepEstimator.normalise`."""

    advantage: float
    """Advantage within its group: the estimator's value times the interaction's share."""
    tokens: int
    """Number of sampled tokens, at least 1."""
    record: int
    """Number of its record in the step."""
    group: int
    """Number of its group in the step."""


@runtime_checkable
class StepEstimator(AdvantageEstimator, Protocol):
    """Estimator with a second stage over all groups of a step, after filtering."""

    def normalise(self, calls: Sequence[TrainedCall]) -> list[float]:
        """Return the final advantage of each call, in the order of `calls`. Values must not depend on that order."""
        ...


class Credit(Protocol):
    """Rule that distributes one record's reward over its interactions; registered under the kind `credits`."""

    def credit(self, episode: Episode) -> Mapping[str, float]:
        """Return interaction id -> share of the record's advantage; id -> return if `record.rewards` is not empty.

        Every interaction has an entry, trainable or not.
        """
        ...


class Filter(Protocol):
    """Rule that decides what is trained of one group; registered under the kind `filters`."""

    @property
    def reason(self) -> str:
        """Short stable word for the metrics `rollout/groups_dropped/NAME` and `rollout/records_left_out/NAME`."""
        ...

    def keep(self, group: Group, advantages: Mapping[str, float]) -> bool | Collection[str]:
        """Return whether to train `group`, or the ids of the records to train.

        `advantages`: interaction id -> advantage, of the group's trained interactions. An exception stops the run.
        """
        ...


class Shaping(Protocol):
    """Rule that changes the rewards of one group; registered under the kind `shapings`.

    A shaping may have the attribute `name`, for messages; its class is named without it.
    """

    def shape(self, group: Group, rewards: Sequence[float]) -> Sequence[float]:
        """Return one reward per episode of `group`; `rewards` are the results of the shapings before this one.

        If a record has rewards per interaction, its entry is their sum. The change of the sum is then distributed over
        its calls like a scalar reward, by the credit's shares.
        """
        ...


@runtime_checkable
class Bounds(Protocol):
    """Shaping that also changes final advantages, after every normalisation."""

    def bound(self, group: Group, advantages: Mapping[str, float]) -> Mapping[str, float]:
        """Return interaction id -> advantage for every id in `advantages`, the trained interactions of `group`."""
        ...
