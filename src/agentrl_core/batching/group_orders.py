"""Orders in which a step takes the groups that are ready: first in first out, freshest first, by a task's priority."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs
from attrs import validators

from agentrl_core.errors import DataError

if TYPE_CHECKING:
    from agentrl_core.api.group_queue import RankedGroup


@attrs.frozen(kw_only=True)
class Fifo:
    """Order of submission. Only this order waits for open groups that would get too old, so that all are trained."""

    def urgency(self, group: RankedGroup) -> float:  # noqa: ARG002  # the protocol of orders
        """Return the same for all groups."""
        return 0.0


@attrs.frozen(kw_only=True)
class Freshest:
    """Order by version, newest first; of one version in the order of submission."""

    def urgency(self, group: RankedGroup) -> float:
        """Return the number of steps that were done when sampling of the group began."""
        return float(group.step)


@attrs.frozen(kw_only=True)
class Priority:
    """Order by a number that each task brings, highest first; of equal numbers in the order of submission."""

    field: str = attrs.field(default="priority", validator=validators.min_len(1))
    """Field of the task with its number."""
    default: float = attrs.field(
        default=0.0, validator=validators.and_(validators.gt(-math.inf), validators.lt(math.inf))
    )
    """Number of tasks without the field, and of tasks that agents bring."""

    def urgency(self, group: RankedGroup) -> float:
        """Return the task's number; raise `DataError` for anything else in its field."""
        value = self.default if group.task is None else group.task.data.get(self.field, self.default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise DataError(f"expected a finite number in the field '{self.field}', found {value!r:.80}")
        return float(value)
