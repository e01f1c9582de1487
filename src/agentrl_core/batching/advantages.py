"""Advantages: how much better a record did than the others of its group.

Two forms of each estimator. `advantages` is for scalar rewards, one number per record. `turn_advantages` is for
rewards per interaction: one list of returns per record, where the baseline is the mean over records of each
record's *mean* return and the spread weighs every record equally, so that long records do not count for more.
With one return per record the two agree.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

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
class GRPO:
    """(R - mean) / (std + eps) * scale, std being the sample standard deviation (arXiv 2402.03300; TRL's form).

    Where all rewards are equal every advantage is 0, also without eps. `std: false` leaves the division out
    (Dr. GRPO, arXiv 2503.20783).
    """

    std: bool = True
    eps: float = field(default=1e-4, validator=validators.ge(0.0))
    """TRL's value. Against rewards of 0 and 1 it changes an advantage by less than 0.1 %."""
    scale: float = field(default=1.0, validator=validators.gt(0.0))

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """One advantage per record."""
        return [turns[0] for turns in self.turn_advantages([[reward] for reward in rewards])]

    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """One advantage per interaction."""
        counted = [turns for turns in returns if turns]
        if not counted:
            return [[] for _ in returns]
        mean = math.fsum(_mean(turns) for turns in counted) / len(counted)
        factor = self.scale
        if self.std:
            spread = _spread(counted, mean)
            if spread <= _ROUNDING * max(abs(value) for turns in counted for value in turns):
                return [[0.0 for _ in turns] for turns in returns]
            factor /= spread + self.eps
        return [[(value - mean) * factor for value in turns] for turns in returns]


@attrs.frozen(kw_only=True)
class LeaveOneOut:
    """R - mean of the group's other records, times `scale` (RLOO, arXiv 2402.14740; AgentCPM's AgentRL).

    A record without others gets 0.
    """

    scale: float = field(default=1.0, validator=validators.gt(0.0))
    """AgentRL's `adv_scaling`."""
    sign_clip: bool = False
    """AgentRL's rule: a reward of at most 0.5 never gets a positive advantage, a higher one never a negative."""

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """One advantage per record."""
        return [turns[0] for turns in self.turn_advantages([[reward] for reward in rewards])]

    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """One advantage per interaction."""
        means = [_mean(turns) for turns in returns if turns]
        total = math.fsum(means)
        results = []
        for turns in returns:
            if not turns or len(means) == 1:
                results.append([0.0 for _ in turns])
                continue
            baseline = (total - _mean(turns)) / (len(means) - 1)
            results.append([self.scale * self._clip(value, value - baseline) for value in turns])
        return results

    def _clip(self, reward: float, advantage: float) -> float:
        if not self.sign_clip:
            return advantage
        return min(advantage, 0.0) if reward <= 0.5 else max(advantage, 0.0)  # noqa: PLR2004  # half of AgentRL's 0..1


@attrs.frozen(kw_only=True)
class NoBaseline:
    """The reward itself (REINFORCE)."""

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """One advantage per record."""
        return list(rewards)

    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """One advantage per interaction."""
        return [list(turns) for turns in returns]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _spread(returns: Sequence[Sequence[float]], mean: float) -> float:
    """Sample standard deviation with every record of the same weight; 0 for a single record."""
    if len(returns) == 1:
        return 0.0
    squares = math.fsum(_mean([(value - mean) ** 2 for value in turns]) for turns in returns)
    return math.sqrt(squares / (len(returns) - 1))
