"""Advantage estimators with a mean or spread over all groups of a step: REINFORCE++, and AReaL's `adv_norm`.

They work in two stages. When a group arrives, `turn_advantages` computes everything that needs this group alone;
filters see that. When all groups of the step are known, `normalise` uses the ones that passed the filters. Sums are
rounded once (`math.fsum`), so the result is bit-identical for every order of groups and records.

In a mean over the step every record has the same weight, as in a group's baseline. With `weigh: token` every sampled
token has, as in REINFORCE++'s Equation 10 and in AReaL; long records then count for more.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs
from attrs import field, validators

from agentrl_core.batching.advantages import DrGRPO, LeaveOneOut, NoBaseline, TurnsFirst, group_spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.api.batching import AdvantageEstimator, TrainedCall

Level: TypeAlias = Literal["batch", "group"]
"""Range of a mean or spread: all groups of the step, or each group alone."""
Weigh: TypeAlias = Literal["record", "token"]
"""Unit of equal weight in a mean or spread over the step."""

_weigh = validators.in_(("record", "token"))


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
        factor = self.scale / (_spread(centred, weights) + self.eps)
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
        factor = 1.0 / (_group_spread(counted) + self.eps)
        return [[value * factor for value in turns] for turns in centred]

    def normalise(self, calls: Sequence[TrainedCall]) -> list[float]:
        """Apply mean and spread over the step, and a group's spread if it needs the step's mean first."""
        weights = _weights(calls, self.weigh)
        values = _centred(calls, weights) if self.mean_level == "batch" else [call.advantage for call in calls]
        if self.std_level == "batch":
            factor = 1.0 / (_spread(values, weights) + self.eps)
            values = [value * factor for value in values]
        elif self.std_level == "group" and self.mean_level == "batch":
            spreads = _spreads_of_groups(calls, values)
            values = [value / (spreads[call.group] + self.eps) for value, call in zip(values, calls, strict=True)]
        return [value * self.scale for value in values]

    def _baseline(self) -> AdvantageEstimator:
        if self.mean_level != "group":
            return NoBaseline()
        return LeaveOneOut() if self.mean_leave1out else DrGRPO()


def _group_spread(centred: Sequence[Sequence[float]]) -> float:
    return group_spread(centred, 0.0) if len(centred) > 1 else 1.0


def _spreads_of_groups(calls: Sequence[TrainedCall], values: Sequence[float]) -> dict[int, float]:
    """Return group -> spread of its values about 0, with equal weights of records."""
    by_record: defaultdict[int, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for call, value in zip(calls, values, strict=True):
        by_record[call.group][call.record].append(value)
    return {group: _group_spread(list(records.values())) for group, records in by_record.items()}


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


def _spread(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted sample standard deviation about 0; 1 for a single record or token."""
    # Bessel's correction: the weights add up to the number of records or tokens.
    others = math.fsum(weights) - 1.0
    if others < 0.5:  # noqa: PLR2004  # a whole number but for rounding
        return 1.0
    return math.sqrt(math.fsum(value * value * weight for value, weight in zip(values, weights, strict=True)) / others)
