"""Advantages: how much better a record did than the others of its group.

Two forms of each estimator. `advantages` is for scalar rewards, one number per record. `turn_advantages` is for
rewards per interaction: one list of returns per record, where the baseline is the mean over records of each
record's *mean* return and the spread weighs every record equally, so that long records do not count for more.
With one return per record the two agree. An estimator that needs the other groups of a step, too, has `normalise`
beside them (`normalisation.py`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import attrs
from attrs import field, validators

if TYPE_CHECKING:
    from collections.abc import Sequence


_ROUNDING = 1e-12
"""A spread of at most this share of the largest reward comes from rounding the mean, and stands for equal rewards."""


class AdvantageEstimator(Protocol):
    """Turns one group's rewards into advantages; a registered `advantage`."""

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """One advantage per record."""
        ...

    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """One advantage per interaction; a record may have none."""
        ...


@attrs.frozen(kw_only=True)
class TrainedCall:
    """One interaction that a step trains, as an estimator of whole steps sees it."""

    advantage: float
    """What its group gave it: the estimator's advantage times the interaction's share."""
    tokens: int
    """Sampled tokens, at least 1."""
    record: int
    """Number of its record in the step."""
    group: int
    """Number of its group in the step."""


@runtime_checkable
class StepEstimator(AdvantageEstimator, Protocol):
    """An estimator that goes over the advantages of a step once all of its groups are known and filtered."""

    def normalise(self, calls: Sequence[TrainedCall]) -> list[float]:
        """The final advantage of each call; must not depend on their order, which is that of the tasks."""
        ...


class TurnsFirst(ABC):
    """Base of estimators whose scalar form is the per-turn form with one turn for each record."""

    __slots__ = ()

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """One advantage per record."""
        return [turns[0] for turns in self.turn_advantages([[reward] for reward in rewards])]

    @abstractmethod
    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """One advantage per interaction."""


@attrs.frozen(kw_only=True)
class GRPO(TurnsFirst):
    """(R - mean) / (std + eps) * scale, std being the sample standard deviation (arXiv 2402.03300; TRL's form).

    Where all rewards are equal every advantage is 0, also without eps. `std: false` leaves the division out.
    """

    std: bool = True
    eps: float = field(default=1e-4, validator=validators.ge(0.0))
    """TRL's value. Against rewards of 0 and 1 it changes an advantage by less than 0.1 %."""
    scale: float = field(default=1.0, validator=validators.gt(0.0))

    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """One advantage per interaction."""
        counted = [turns for turns in returns if turns]
        if not counted:
            return [[] for _ in returns]
        mean = group_mean(counted)
        factor = self.scale
        if self.std:
            spread = group_spread(counted, mean)
            if is_rounding(spread, counted):
                return [[0.0 for _ in turns] for turns in returns]
            factor /= spread + self.eps
        return [[(value - mean) * factor for value in turns] for turns in returns]


@attrs.frozen(kw_only=True)
class DrGRPO(TurnsFirst):
    """(R - mean) * scale: GRPO without the division by the group's spread (arXiv 2503.20783, Section 3.2).

    A group of hard or easy tasks, whose rewards hardly differ, counts for no more than any other.
    """

    scale: float = field(default=1.0, validator=validators.gt(0.0))

    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """One advantage per interaction."""
        return GRPO(std=False, scale=self.scale).turn_advantages(returns)


@attrs.frozen(kw_only=True)
class PerTurn(TurnsFirst):
    """GRPO with a baseline and a spread for every turn: the k-th calls of the group's records are compared.

    For rewards per interaction: A_ik = (R_ik - mean_j R_jk) / (std_j R_jk + eps) * scale, over the records j with a
    k-th trained call. That is MT-GRPO's comparison of equal turns (arXiv 2505.11821, Section 4), of returns: where
    MT-GRPO adds a turn's and the outcome's normalised rewards, R_ik is already the (discounted) sum of the rewards
    from the turn on. A turn that no other record reached gets 0. With one reward per record it is GRPO.
    """

    std: bool = True
    eps: float = field(default=1e-4, validator=validators.ge(0.0))
    """As GRPO's."""
    scale: float = field(default=1.0, validator=validators.gt(0.0))

    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """One advantage per interaction."""
        grpo = GRPO(std=self.std, eps=self.eps, scale=self.scale)
        results: list[list[float]] = [[] for _ in returns]
        for turn in range(max(map(len, returns), default=0)):
            reached = [index for index, turns in enumerate(returns) if len(turns) > turn]
            found = grpo.advantages([returns[index][turn] for index in reached])
            for index, value in zip(reached, found, strict=True):
                results[index].append(value)
        return results


@attrs.frozen(kw_only=True)
class LeaveOneOut(TurnsFirst):
    """R - mean of the group's other records, times `scale` (RLOO, arXiv 2402.14740).

    A record without others gets 0.
    """

    scale: float = field(default=1.0, validator=validators.gt(0.0))
    """AgentRL's `adv_scaling`."""
    sign_clip: bool = False
    """AgentRL's rule: a reward of at most 0.5 never gets a positive advantage, a higher one never a negative."""

    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """One advantage per interaction."""
        means = [mean_of(turns) for turns in returns if turns]
        total = math.fsum(means)
        results = []
        for turns in returns:
            if not turns or len(means) == 1:
                results.append([0.0 for _ in turns])
                continue
            baseline = (total - mean_of(turns)) / (len(means) - 1)
            results.append([self.scale * self._clip(value, value - baseline) for value in turns])
        return results

    def _clip(self, reward: float, advantage: float) -> float:
        if not self.sign_clip:
            return advantage
        return min(advantage, 0.0) if reward <= 0.5 else max(advantage, 0.0)  # noqa: PLR2004  # half of AgentRL's 0..1


@attrs.frozen(kw_only=True)
class AgentCPM(LeaveOneOut):
    """AgentCPM's AgentRL: leave-one-out without a division, clipped by sign, times `scale` (its `adv_scaling`).

    Episodes that failed are not in the group here, where AgentRL's keep counting as 0 in the baseline. Its other
    rules are parts of their own: the shapings `rank` and `malformed`, the filters `zero_variance` (min_range 0.1),
    `balance_sample`, `min_turns` and `overlong`.
    """

    sign_clip: bool = True


@attrs.frozen(kw_only=True)
class NoBaseline:
    """The reward itself (REINFORCE)."""

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """One advantage per record."""
        return list(rewards)

    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """One advantage per interaction."""
        return [list(turns) for turns in returns]


def mean_of(values: Sequence[float]) -> float:
    """Mean of at least one value, rounded once: it does not depend on their order."""
    return math.fsum(values) / len(values)


def group_mean(returns: Sequence[Sequence[float]]) -> float:
    """Mean over records of each record's mean return; every record has one."""
    return mean_of([mean_of(turns) for turns in returns])


def group_spread(returns: Sequence[Sequence[float]], mean: float) -> float:
    """Sample standard deviation about `mean` with every record of the same weight; 0 for a single record."""
    if len(returns) == 1:
        return 0.0
    squares = math.fsum(mean_of([(value - mean) ** 2 for value in turns]) for turns in returns)
    return math.sqrt(squares / (len(returns) - 1))


def is_rounding(spread: float, returns: Sequence[Sequence[float]]) -> bool:
    """Whether a spread comes from rounding the mean of equal returns."""
    return spread <= _ROUNDING * max(abs(value) for turns in returns for value in turns)
