"""Advantage estimators: compare each record's reward with a baseline of its group.

Each estimator has two forms. `advantages` is for scalar rewards: one number per record. `turn_advantages` is for
rewards per interaction: one list of returns per record. There the baseline is the mean over records of each record's
*mean* return, and the spread weighs every record equally, so long records do not count for more. With one return per
record both forms agree. An estimator that also needs the step's other groups has a third method, `normalise`
(`normalisation.py`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import attrs
from attrs import field, validators

if TYPE_CHECKING:
    from collections.abc import Sequence


_ROUNDING = 1e-12
"""Largest spread, as a share of the largest reward, that is attributed to rounding the mean: the rewards are equal."""


class TurnsFirst(ABC):
    """Base class of estimators whose scalar form is the per-turn form with one turn per record."""

    __slots__ = ()

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """Return one advantage per record."""
        return [turns[0] for turns in self.turn_advantages([[reward] for reward in rewards])]

    @abstractmethod
    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """Return one advantage per interaction."""


@attrs.frozen(kw_only=True)
class GRPO(TurnsFirst):
    """GRPO: (R - mean) / (std + eps) * scale, with the sample standard deviation (arXiv 2402.03300; TRL's form).

    If all rewards are equal, every advantage is 0, also with `eps: 0`. `std: false` omits the division.
    """

    std: bool = True
    """Divide by the group's standard deviation."""
    eps: float = field(default=1e-4, validator=validators.ge(0.0))
    """Added to the standard deviation; TRL's value. For rewards 0 and 1 it changes advantages by less than 0.1 %."""
    scale: float = field(default=1.0, validator=validators.gt(0.0))

    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """Return one advantage per interaction."""
        counted = [turns for turns in returns if turns]
        if not counted:
            return [[] for _ in returns]
        mean = group_mean(counted)
        factor = self.scale
        if self.std:
            spread = group_spread(counted, mean)
            # With equal rewards the mean may be off by a rounding error, which a small eps would blow up.
            if is_rounding(spread, counted):
                return [[0.0 for _ in turns] for turns in returns]
            factor /= spread + self.eps
        return [[(value - mean) * factor for value in turns] for turns in returns]


@attrs.frozen(kw_only=True)
class DrGRPO(TurnsFirst):
    """Dr. GRPO: (R - mean) * scale, GRPO without the division by the group's spread (arXiv 2503.20783, Section 3.2).

    So a group of a very hard or very easy task, whose rewards hardly differ, does not get larger advantages.
    """

    scale: float = field(default=1.0, validator=validators.gt(0.0))

    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """Return one advantage per interaction."""
        return GRPO(std=False, scale=self.scale).turn_advantages(returns)


@attrs.frozen(kw_only=True)
class PerTurn(TurnsFirst):
    """GRPO with one baseline and one spread per turn: compares the k-th calls of the group's records.

    For rewards per interaction: A_ik = (R_ik - mean_j R_jk) / (std_j R_jk + eps) * scale, over the records j with a
    k-th trained call. This is MT-GRPO's comparison of equal turns (arXiv 2505.11821, Section 4), applied to returns:
    MT-GRPO adds the normalised rewards of a turn and of the outcome, while R_ik already is the (discounted) sum of the
    rewards from turn k on. A turn that no other record reached gets 0. With one reward per record it equals GRPO.
    """

    std: bool = True
    """Divide by the turn's standard deviation."""
    eps: float = field(default=1e-4, validator=validators.ge(0.0))
    """Added to the standard deviation; GRPO's value."""
    scale: float = field(default=1.0, validator=validators.gt(0.0))

    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """Return one advantage per interaction."""
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
    """RLOO: (R - mean of the group's other records) * scale (arXiv 2402.14740).

    The only record of a group gets 0.
    """

    scale: float = field(default=1.0, validator=validators.gt(0.0))
    """Factor of every advantage; `adv_scaling` in AgentCPM's AgentRL."""
    sign_clip: bool = False
    """Never give a reward of at most 0.5 a positive advantage, or a higher one a negative (AgentCPM's AgentRL)."""

    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """Return one advantage per interaction."""
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
    """Estimator of AgentCPM's AgentRL (another project): leave-one-out, clipped by sign, times `scale`.

    We differ: episodes that failed are not part of the group, where they count as 0 in AgentRL's baseline. AgentRL's
    other rules are separate components: the shapings `rank` and `malformed`, the filters `zero_variance` (min_range
    0.1), `balance_sample`, `min_turns` and `overlong`.
    """

    sign_clip: bool = True


@attrs.frozen(kw_only=True)
class NoBaseline:
    """Reward as advantage, without a baseline (REINFORCE)."""

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """Return one advantage per record."""
        return list(rewards)

    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """Return one advantage per interaction."""
        return [list(turns) for turns in returns]


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of at least one value. The sum is rounded once, so it does not depend on the order."""
    return math.fsum(values) / len(values)


def group_mean(returns: Sequence[Sequence[float]]) -> float:
    """Return the mean over records of each record's mean return; every record has at least one return."""
    return mean_of([mean_of(turns) for turns in returns])


def group_spread(returns: Sequence[Sequence[float]], mean: float) -> float:
    """Return the sample standard deviation about `mean`, all records weighing the same; 0 for a single record."""
    if len(returns) == 1:
        return 0.0
    squares = math.fsum(mean_of([(value - mean) ** 2 for value in turns]) for turns in returns)
    return math.sqrt(squares / (len(returns) - 1))


def is_rounding(spread: float, returns: Sequence[Sequence[float]]) -> bool:
    """Return whether a spread is only the rounding error of the mean of equal returns."""
    return spread <= _ROUNDING * max(abs(value) for turns in returns for value in turns)
