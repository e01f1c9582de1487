"""Live progress of a run, for the console's status line: current phase, units done, failures so far."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from agentrl_core.api.trackers import Activity
from agentrl_core.config.invocation import command_line
from agentrl_core.rollout.outcome_counts import label
from agentrl_core.types import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agentrl_core.types import Record

_TOLD = 10
"""Number of kinds of failure that get a notice of their own; further kinds are only counted."""


class Progress:
    """Collector of the numbers that make up an `Activity`; thread-safe.

    `notice(message)` is called for the first episode of each kind that ends without a reward.
    """

    def __init__(self, notice: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._notice, self._clock = notice, clock
        self._lock = threading.Lock()
        self._phase, self._phase_began, self._step_began = "loading", clock(), clock()
        self._step = self._steps = self._done = self._total = 0
        self._unit = ""
        self._slots: set[tuple[str, int]] = set()
        """Group id and sample index of each training episode that has ended and that no step has taken yet."""
        self._failures: Counter[str] = Counter()
        self._newest_failure = ""
        self._calls: Callable[[], int] = int
        self._calls_before = 0
        self._waits_for: Callable[[], str] = str

    def begin(self, phase: str, *, total: int = 0, unit: str = "episodes") -> None:
        """Begin a phase of `total` units."""
        with self._lock:
            self._phase, self._phase_began = phase, self._clock()
            self._done, self._total, self._unit = 0, total, unit
            self._calls_before = self._calls()

    def begin_step(self, step: int, steps: int, *, ahead: bool) -> None:
        """Begin step number `step` of `steps`.

        `ahead` says that sampling runs ahead of training, so episodes that have ended before may belong to this step.
        """
        with self._lock:
            self._step, self._steps, self._step_began = step, steps, self._clock()
            if not ahead:
                self._slots.clear()

    def advance(self) -> None:
        """Count one more finished unit of the phase."""
        with self._lock:
            self._done += 1

    def count_calls(self, calls: Callable[[], int]) -> None:
        """Use `calls` from now on to read the number of LLM calls."""
        self._calls = calls

    def name_waits(self, waits_for: Callable[[], str]) -> None:
        """Use `waits_for` from now on to read what the run waits for."""
        self._waits_for = waits_for

    def ended(self, record: Record) -> None:
        """Count an ended episode; send a notice for the first failure of its kind."""
        name = label(record)
        with self._lock:
            if record.is_eval:
                self._done += self._phase == "evaluating"
            else:
                self._slots.add((record.group_id, record.sample_index))
            if record.outcome is Outcome.SCORED:
                return
            self._failures[name] += 1
            self._newest_failure = name
            told = self._failures[name] > 1 or len(self._failures) > _TOLD
        if not told:
            self._notice(
                f"an episode on task '{record.task_id}' ended without a reward, {name}: {record.detail or name}. See "
                f"`{command_line('trace', 'show', record.id)}`; further ones of this kind are only counted"
            )

    def taken(self, groups: Iterable[str]) -> None:
        """Forget the episodes of the groups that a step has taken: they no longer count as sampled for the next one."""
        ids = set(groups)
        with self._lock:
            self._slots = {slot for slot in self._slots if slot[0] not in ids}

    def now(self) -> Activity:
        """Return a snapshot of the run's current activity."""
        with self._lock:
            now = self._clock()
            done = len(self._slots) if self._phase == "sampling" else self._done
            return Activity(
                phase=self._phase,
                phase_s=now - self._phase_began,
                step=self._step,
                steps=self._steps,
                step_s=now - self._step_began,
                done=done,
                # More may be done than planned: retried slots, groups that were replaced, and sampling ahead.
                total=max(self._total, done) if self._total else 0,
                unit=self._unit,
                llm_calls=self._calls() - self._calls_before,
                failures=dict(self._failures),
                newest_failure=self._newest_failure,
                waits_for=self._waits_for(),
            )
