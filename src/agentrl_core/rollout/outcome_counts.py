"""Count how records and groups end, and stop or slow down a run in which too many episodes fail."""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import TYPE_CHECKING

from agentrl_core.config.invocation import command_line
from agentrl_core.errors import RunError
from agentrl_core.types import Outcome, ToolOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentrl_core.config.sampling_sections import RolloutConfig
    from agentrl_core.types import Record, ToolCall


def label(record: Record) -> str:
    """Return the name that a record counts under: `scored`, `timed_out`, `failed(ValueError)`, …."""
    return f"{record.outcome.value}({record.reason})" if record.reason else record.outcome.value


def answer_name(record: Record) -> str:
    r"""Return where a scored record's answer was found, for counting; empty if no scorer gave its reward.

    `schema <answer>…</answer>`: the reply has the schema. `nowhere \boxed{…}`: it lacks the schema that the task names.
    `reply`: the whole reply was scored and got more than 0. `reply 0`: it got nothing. `workflow`: the workflow
    returned the answer.
    """
    judged = record.score_details.get("judged")
    if not isinstance(judged, dict) or record.score is not None or record.reward is None:
        return ""
    source = str(judged.get("from"))
    if source in {"schema", "nowhere"}:
        return f"{source} {judged.get('looked_for')}"
    return f"{source} 0" if source == "reply" and record.reward <= 0 else source


def tool_names(call: ToolCall) -> Iterator[str]:
    """Yield the names that a tool call counts under: `called NAME`, and `failed NAME`; none if it was refused."""
    if call.outcome.is_failure or call.outcome is ToolOutcome.OK:
        yield f"called {call.name}"
    if call.outcome.is_failure:
        yield f"failed {call.name}"


class Counts:
    """Counters by name; filled on one thread, read from any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: Counter[str] = Counter()
        self._drained: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Add to the count of `name`."""
        with self._lock:
            self._totals[name] += count

    @property
    def totals(self) -> dict[str, int]:
        """Name -> count so far."""
        with self._lock:
            return dict(self._totals)

    def drain(self) -> dict[str, int]:
        """Return name -> count since the last call."""
        with self._lock:
            # Under the lock: the difference and the new baseline must come from the same state.
            news = self._totals - self._drained
            self._drained = self._totals.copy()
        return dict(news)


_PACED = 64
"""Last records from which the pause after a failure is computed."""
_LONGEST_PAUSE_S = 10.0
"""Pause after a failure when all of the last records failed."""


class OutcomeCounts:
    """Outcomes of a run's records and groups; filled on the agents' loop, read from any thread."""

    def __init__(self, config: RolloutConfig) -> None:
        self._limit = config.max_failure_rate
        self._recent: deque[Record] = deque(maxlen=config.failure_window)
        self._failed: deque[bool] = deque(maxlen=_PACED)
        self.records = Counts()
        """Records by outcome."""
        self.groups = Counts()
        """`sampled` groups, the `unusable` among them, and the `requeued` among the unusable."""
        self.answers = Counts()
        """Training records that a scorer rewarded, by the place where their answer was found (`answer_name`)."""

    def add(self, record: Record) -> None:
        """Count a finished record. Raises `RunError` once too many of the last ones, or all, ended without a score."""
        self.records.add(label(record))
        if not record.is_eval and (name := answer_name(record)):
            self.answers.add(name)
        self._recent.append(record)
        self._failed.append(record.outcome is not Outcome.SCORED)
        failures = [item for item in self._recent if item.outcome is not Outcome.SCORED]
        most = min(self._limit * len(self._recent), len(self._recent) - 1)
        # Only a full window counts, so that a few failures at the start do not stop the run.
        if len(self._recent) == self._recent.maxlen and len(failures) > most:
            raise RunError(self._reasons(failures))

    def pause_s(self, record: Record) -> float:
        """Return how long the record's slot stays empty.

        After a failure the slot pauses for 10 s if the last 64 records have all failed, half as long for every four
        that have not. The record's own duration is subtracted. Without this, an agent that fails at once would fill the
        store.
        """
        if record.outcome is Outcome.SCORED or len(self._failed) < _PACED:
            return 0.0
        pause_s = float(_LONGEST_PAUSE_S * 2 ** ((sum(self._failed) - _PACED) / 4))
        return max(0.0, pause_s - (record.finished_at - record.started_at))

    def add_cancelled(self, reason: str = "") -> None:
        """Count a record that was cancelled because the run stopped or a sibling failed: it is not a failure."""
        name = Outcome.CANCELLED.value
        self.records.add(f"{name}({reason})" if reason else name)

    def add_group(self, *, usable: bool, requeued: bool = False) -> None:
        """Count a group that ended."""
        self.groups.add("sampled")
        if not usable:
            self.groups.add("unusable")
        if requeued:
            self.groups.add("requeued")

    def _reasons(self, failures: list[Record]) -> str:
        counts = Counter(label(record) for record in failures).most_common()
        example = next(record for record in reversed(failures) if label(record) == counts[0][0])
        allowed = f"more than rollout.max_failure_rate = {self._limit:g} allows"
        # With a limit of 1, `most` is one less than all: only a window without a single score stops the run.
        if self._limit == 1:
            allowed = "and rollout.max_failure_rate = 1 allows any share but all"
        return (
            f"{len(failures)} of the last {len(self._recent)} episodes gave no reward, {allowed}: "
            f"{', '.join(f'{name} {count}' for name, count in counts)}. For example, task '{example.task_id}': "
            f"{example.detail or label(example)}. To see its trace, run `{command_line('trace', 'show', example.id)}`"
        )
