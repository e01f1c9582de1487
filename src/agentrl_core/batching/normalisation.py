"""Advantages normalised over all groups of a step: REINFORCE++, and AReaL's `adv_norm`.

Two stages. Each group gets what it can tell alone when it arrives; filters see that. Once the step's groups are
known, `normalise` goes over what the filters left. Sums are rounded once (`math.fsum`), so neither the order in
which groups arrive nor that of their records changes a bit.

A mean over the step gives every record the same weight, as a group's baseline does, or every sampled token
(`weigh: token`), as REINFORCE++'s Equation 10 and AReaL do; long records then count for more.
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

    from agentrl_core.batching.advantages import AdvantageEstimator, TrainedCall

Level: TypeAlias = Literal["batch", "group"]
"""What a mean or a spread is taken over: all groups of the step, or each alone."""
Weigh: TypeAlias = Literal["record", "token"]

_weigh = validators.in_(("record", "token"))


@attrs.frozen(kw_only=True)
class ReinforcePP(TurnsFirst):
    """(A - mean of the step) / (std of the step + eps) * scale, A = R - mean of the group (arXiv 2501.03262).

    That is REINFORCE++ with baseline; `baseline: false` is plain REINFORCE++, A = R, for groups of any size. The
    baseline includes the record itself, as there; the spread is the sample standard deviation. The paper's KL term
    is the loss's matter here. A step whose advantages are all equal gets 0.
    """

    baseline: bool = True
    weigh: Weigh = field(default="record", validator=_weigh)
    eps: float = field(default=1e-4, validator=validators.gt(0.0))
    """GRPO's. Above 0, so that equal advantages, which differ by rounding, are not blown up."""
    scale: float = field(default=1.0, validator=validators.gt(0.0))

    @property
    def compares_groups(self) -> bool:
        """Whether a group of equal rewards teaches something, for it may be better than the step's others."""
        return not self.baseline

    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """One advantage per interaction: of its group alone."""
        return (DrGRPO() if self.baseline else NoBaseline()).turn_advantages(returns)

    def normalise(self, calls: Sequence[TrainedCall]) -> list[float]:
        """Whitened over the step."""
        weights = _weights(calls, self.weigh)
        centred = _centred(calls, weights)
        factor = self.scale / (_spread(centred, weights) + self.eps)
        return [value * factor for value in centred]


@attrs.frozen(kw_only=True)
class Norm(TurnsFirst):
    """(R - mean) / (std + eps) * scale, with mean and std each over the group, over the step, or left out.

    AReaL's `adv_norm` and its presets: group and group is GRPO, group and null Dr. GRPO, with `mean_leave1out` RLOO,
    group and batch LitePPO (arXiv 2508.08221), batch and batch REINFORCE++. As in AReaL the spread is about the mean
    that was taken away, about 0 where none was, and 1 for a single record. We differ in the weights (`weigh`), and a
    group's own spread is that of all its records, those that a filter leaves out included.
    """

    mean_level: Level | None = field(default="group", validator=validators.in_(("batch", "group", None)))
    std_level: Level | None = field(default="batch", validator=validators.in_(("batch", "group", None)))
    mean_leave1out: bool = field(default=False)
    """The mean of a group leaves the record itself out; only with `mean_level: group`."""
    weigh: Weigh = field(default="record", validator=_weigh)
    """For what is taken over the step; in a group records always weigh the same."""
    eps: float = field(default=1e-5, validator=validators.gt(0.0))
    """AReaL's."""
    scale: float = field(default=1.0, validator=validators.gt(0.0))

    @mean_leave1out.validator
    def _only_in_groups(self, _attribute: object, value: bool) -> None:  # noqa: FBT001  # attrs' validator protocol
        if value and self.mean_level != "group":
            raise ValueError(f"'mean_leave1out' needs mean_level: group, found {self.mean_level}")

    @property
    def compares_groups(self) -> bool:
        """Whether a group of equal rewards teaches something, for it may be better than the step's others."""
        return self.mean_level == "batch"

    def turn_advantages(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """One advantage per interaction, as far as the group alone tells."""
        centred = self._baseline().turn_advantages(returns)
        counted = [turns for turns in centred if turns]
        if self.std_level != "group" or self.mean_level == "batch" or not counted:
            return centred
        factor = 1.0 / (_group_spread(counted) + self.eps)
        return [[value * factor for value in turns] for turns in centred]

    def normalise(self, calls: Sequence[TrainedCall]) -> list[float]:
        """What is over the step, and what needs the step's mean first."""
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
    """Group -> spread about 0 of its values, every record of the same weight."""
    by_record: defaultdict[int, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for call, value in zip(calls, values, strict=True):
        by_record[call.group][call.record].append(value)
    return {group: _group_spread(list(records.values())) for group, records in by_record.items()}


def _weights(calls: Sequence[TrainedCall], weigh: Weigh) -> list[float]:
    """One weight per call: its tokens, or its part of its record, whose calls have 1 together."""
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
    """Weighted sample standard deviation about 0; 1 for a single record or token."""
    others = math.fsum(weights) - 1.0
    if others < 0.5:  # noqa: PLR2004  # a whole number but for rounding
        return 1.0
    return math.sqrt(math.fsum(value * value * weight for value, weight in zip(values, weights, strict=True)) / others)
