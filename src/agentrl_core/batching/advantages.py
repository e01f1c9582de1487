"""Advantage estimators: compare each record's reward with a baseline of its group, or of the whole step.

Each estimator has two forms. `advantages` is for scalar rewards: one number per record. `turn_advantages` is for
rewards per interaction: one list of returns per record. There the baseline is the mean over records of each record's
*mean* return, and the spread weighs every record equally, so long records do not count for more. With one return per
record both forms agree.

REINFORCE++ and AReaL's `adv_norm` have a second stage over all groups of a step: when a group arrives,
`turn_advantages` computes everything that needs this group alone, and filters see that; when all groups are known,
`normalise` uses the ones that passed the filters. In a mean over the step every record has the same weight, as in a
group's baseline. With `weigh: token` every sampled token has, as in REINFORCE++'s Equation 10 and in AReaL; long
records then count for more.

Sums are rounded once (`math.fsum`), so results are bit-identical for every order of groups and records.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs
from attrs import field, validators

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.api.batching import AdvantageEstimator, TrainedCall

Level: TypeAlias = Literal["batch", "group"]
"""Range of a mean or spread: all groups of the step, or each group alone."""
Weigh: TypeAlias = Literal["record", "token"]
"""Unit of equal weight in a mean or spread over the step."""

_weigh = validators.in_(("record", "token"))
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
        mean = _group_mean(counted)
        factor = self.scale
        if self.std:
            spread = _spread_about(counted, mean)
            # With equal rewards the mean may be off by a rounding error, which a small eps would blow up.
            if _is_rounding(spread, counted):
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
        means = [_mean_of(turns) for turns in returns if turns]
        total = math.fsum(means)
        results = []
        for turns in returns:
            if not turns or len(means) == 1:
                results.append([0.0 for _ in turns])
                continue
            baseline = (total - _mean_of(turns)) / (len(means) - 1)
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


@attrs.frozen(kw_only=True)
class ReinforcePP(TurnsFirst):
    """REINFORCE++: (A - mean of the step) / (std of the step + eps) * scale, A = R - mean of the group.

    arXiv 2501.03262. This is REINFORCE++ with baseline; `baseline: false` is plain REINFORCE++ with A = R, for groups
    of any size. As in the paper, the baseline includes the record itself. The spread is the sample standard deviation.
    We differ: the paper's KL term is not part of the reward; add it to the loss. If all advantages of a step are equal,
    they become 0.
    """

    baseline: bool = True
    """Subtract the group's mean first."""
    weigh: Weigh = field(default="record", validator=_weigh)
    """Unit of equal weight in the step's mean and spread."""
    eps: float = field(default=1e-4, validator=validators.gt(0.0))
    """Added to the spread; GRPO's value. Above 0, because equal advantages that differ by rounding must stay small."""
    scale: float = field(default=1.0, validator=validators.gt(0.0))

    @property
    def compares_groups(self) -> bool:
        """True if a group of equal rewards has a signal, because it is compared with the step's other groups."""
        return not self.baseline

    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """Return one advantage per interaction, as far as the group alone determines it."""
        return (DrGRPO() if self.baseline else NoBaseline()).turn_advantages(returns)

    def normalise(self, calls: Sequence[TrainedCall]) -> list[float]:
        """Return the advantages, whitened over the step."""
        weights = _weights(calls, self.weigh)
        centred = _centred(calls, weights)
        factor = self.scale / (_weighted_spread(centred, weights) + self.eps)
        return [value * factor for value in centred]


@attrs.frozen(kw_only=True)
class Norm(TurnsFirst):
    """AReaL's `adv_norm`: (R - mean) / (std + eps) * scale, with mean and std over the group, the step, or omitted.

    Presets as (`mean_level`, `std_level`): (group, group) is GRPO, (group, null) Dr. GRPO, or RLOO with
    `mean_leave1out`, (group, batch) LitePPO (arXiv 2508.08221), (batch, batch) REINFORCE++. As in AReaL, the spread is
    taken about the subtracted mean, or about 0 if none was subtracted, and is 1 for a single record. We differ in the
    weights (`weigh`), and in the group's own spread: it includes the records that a filter leaves out, unless it is
    taken about the step's mean, which is known only after the filters.
    """

    mean_level: Level | None = field(default="group", validator=validators.in_(("batch", "group", None)))
    """Range of the mean; null subtracts none. `batch` is the whole step."""
    std_level: Level | None = field(default="batch", validator=validators.in_(("batch", "group", None)))
    """Range of the spread; null does not divide. `batch` is the whole step."""
    mean_leave1out: bool = field(default=False)
    """Leave the record itself out of its group's mean; only with `mean_level: group`."""
    weigh: Weigh = field(default="record", validator=_weigh)
    """Unit of equal weight in means and spreads over the step; within a group it is always the record."""
    eps: float = field(default=1e-5, validator=validators.gt(0.0))
    """Added to the spread; AReaL's value."""
    scale: float = field(default=1.0, validator=validators.gt(0.0))

    @mean_leave1out.validator
    def _only_in_groups(self, _attribute: object, value: bool) -> None:  # noqa: FBT001  # attrs' validator protocol
        if value and self.mean_level != "group":
            raise ValueError(f"'mean_leave1out' needs mean_level: group, found {self.mean_level}")

    @property
    def compares_groups(self) -> bool:
        """True if a group of equal rewards has a signal, because it is compared with the step's other groups."""
        return self.mean_level == "batch"

    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """Return one advantage per interaction, as far as the group alone determines it."""
        centred = self._baseline().turn_advantages(returns)
        counted = [turns for turns in centred if turns]
        # A group's spread about the step's mean has to wait for `normalise`.
        if self.std_level != "group" or self.mean_level == "batch" or not counted:
            return centred
        # `scale` is applied once, in `normalise`.
        factor = 1.0 / (_spread_of_group(counted) + self.eps)
        return [[value * factor for value in turns] for turns in centred]

    def normalise(self, calls: Sequence[TrainedCall]) -> list[float]:
        """Apply mean and spread over the step, and a group's spread if it needs the step's mean first."""
        weights = _weights(calls, self.weigh)
        values = _centred(calls, weights) if self.mean_level == "batch" else [call.advantage for call in calls]
        if self.std_level == "batch":
            factor = 1.0 / (_weighted_spread(values, weights) + self.eps)
            values = [value * factor for value in values]
        elif self.std_level == "group" and self.mean_level == "batch":
            spreads = _spreads_of_groups(calls, values)
            values = [value / (spreads[call.group] + self.eps) for value, call in zip(values, calls, strict=True)]
        return [value * self.scale for value in values]

    def _baseline(self) -> AdvantageEstimator:
        if self.mean_level != "group":
            return NoBaseline()
        return LeaveOneOut() if self.mean_leave1out else DrGRPO()


def _mean_of(values: Sequence[float]) -> float:
    """Return the mean of at least one value. The sum is rounded once, so it does not depend on the order."""
    return math.fsum(values) / len(values)


def _group_mean(returns: Sequence[Sequence[float]]) -> float:
    """Return the mean over records of each record's mean return; every record has at least one return."""
    return _mean_of([_mean_of(turns) for turns in returns])


def _spread_about(returns: Sequence[Sequence[float]], mean: float) -> float:
    """Return the sample standard deviation about `mean`, all records weighing the same; 0 for a single record."""
    if len(returns) == 1:
        return 0.0
    squares = math.fsum(_mean_of([(value - mean) ** 2 for value in turns]) for turns in returns)
    return math.sqrt(squares / (len(returns) - 1))


def _is_rounding(spread: float, returns: Sequence[Sequence[float]]) -> bool:
    """Return whether a spread is only the rounding error of the mean of equal returns."""
    return spread <= _ROUNDING * max(abs(value) for turns in returns for value in turns)


def _spread_of_group(centred: Sequence[Sequence[float]]) -> float:
    """Return the sample standard deviation of centred returns about 0; 1 for a single record, as in AReaL."""
    return _spread_about(centred, 0.0) if len(centred) > 1 else 1.0


def _spreads_of_groups(calls: Sequence[TrainedCall], values: Sequence[float]) -> dict[int, float]:
    """Return group -> spread of its values about 0, with equal weights of records."""
    by_record: defaultdict[int, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for call, value in zip(calls, values, strict=True):
        by_record[call.group][call.record].append(value)
    return {group: _spread_of_group(list(records.values())) for group, records in by_record.items()}


def _weights(calls: Sequence[TrainedCall], weigh: Weigh) -> list[float]:
    """Return one weight per call: its number of tokens, or 1 / number of the record's calls."""
    if weigh == "token":
        return [float(call.tokens) for call in calls]
    of_record = Counter(call.record for call in calls)
    return [1.0 / of_record[call.record] for call in calls]


def _centred(calls: Sequence[TrainedCall], weights: Sequence[float]) -> list[float]:
    if not calls:
        return []
    total = math.fsum(call.advantage * weight for call, weight in zip(calls, weights, strict=True))
    mean = total / math.fsum(weights)
    return [call.advantage - mean for call in calls]


def _weighted_spread(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted sample standard deviation about 0; 1 for a single record or token."""
    # Bessel's correction: the weights add up to the number of records or tokens.
    others = math.fsum(weights) - 1.0
    if others < 0.5:  # noqa: PLR2004  # a whole number but for rounding
        return 1.0
    return math.sqrt(math.fsum(value * value * weight for value, weight in zip(values, weights, strict=True)) / others)
