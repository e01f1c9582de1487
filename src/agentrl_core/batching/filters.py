"""Filters: which groups are worth an optimizer step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs
from attrs import field, validators

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.types import Group


class Filter(Protocol):
    """Decides about one group; what it drops is counted under `reason`."""

    @property
    def reason(self) -> str:
        """Short stable word for the metric `rollout/groups_dropped/<reason>`."""
        ...

    def keep(self, group: Group, advantages: Mapping[str, float]) -> bool:
        """Whether to train `group`. `advantages`: interaction id -> advantage, of the trained interactions."""
        ...


@attrs.frozen(kw_only=True)
class ZeroVariance:
    """Drops a group without a signal: every advantage is 0, because all its records did equally well.

    DAPO's dynamic sampling (arXiv 2503.14476) without the resampling. Looks at the advantages of single
    interactions, so rewards per turn that differ inside a record count as a signal.
    """

    tolerance: float = field(default=1e-6, validator=validators.ge(0.0))
    """Largest absolute advantage that counts as 0."""

    @property
    def reason(self) -> str:
        """Short stable word for counting."""
        return "zero_variance"

    def keep(self, group: Group, advantages: Mapping[str, float]) -> bool:  # noqa: ARG002  # the filter protocol
        """Whether any interaction has an advantage."""
        return has_signal(advantages, tolerance=self.tolerance)


def has_signal(advantages: Mapping[str, float], *, tolerance: float = 1e-6) -> bool:
    """Whether any advantage differs from 0 by more than rounding."""
    return any(abs(value) > tolerance for value in advantages.values())
