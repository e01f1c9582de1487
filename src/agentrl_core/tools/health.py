"""Share of a tool server's last calls that failed for its own reasons, and the error that then ends the run."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from agentrl_core.errors import ToolServerError
from agentrl_core.types import ToolOutcome

if TYPE_CHECKING:
    from agentrl_core.config.sampling_sections import ToolsConfig

SERVER_FAULTS = frozenset(
    {
        ToolOutcome.NOT_SENT,
        ToolOutcome.DELIVERY_UNKNOWN,
        ToolOutcome.INVALID_RESULT,
        ToolOutcome.ENVIRONMENT_LOST,
    }
)
"""Outcomes for which the server is to blame, not the model."""


class Health:
    """Outcomes of the last calls of the server `name`, on the agents' event loop."""

    def __init__(self, name: str, config: ToolsConfig) -> None:
        self._name, self._limit = name, config.max_failure_rate
        self._last: deque[ToolOutcome] = deque(maxlen=config.failure_window)
        self._error = ""

    def add(self, outcome: ToolOutcome, error: str = "") -> ToolServerError | None:
        """Count a call; return the error that ends the run if too many of the last ones, or all, have failed."""
        self._last.append(outcome)
        if outcome not in SERVER_FAULTS:
            return None
        self._error = error
        faults = Counter(item for item in self._last if item in SERVER_FAULTS)
        most = min(self._limit * len(self._last), len(self._last) - 1)
        # Only a full window counts, so that a few failures at the start do not stop the run.
        if len(self._last) < (self._last.maxlen or 0) or faults.total() <= most:
            return None
        counts = ", ".join(f"{item.value} {count}" for item, count in faults.most_common())
        return ToolServerError(
            f"tool server '{self._name}': {faults.total()} of its last {len(self._last)} calls failed ({counts}), more "
            f"than tools.max_failure_rate = {self._limit:g} allows; the last error: {self._error or 'none was given'}. "
            "Look at the server and its log, then resume the run"
        )
