"""Text of the progress line of `console`: the current activity as a bar for terminals or a sentence for files."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrl_core.api.trackers import Activity

_NEWEST = 0.3
"""Weight of the newest step in the moving average of step durations; older steps count less and less."""
_FIRST_SHARE = 0.05
"""Share of the first step's episodes that must be done before the remaining time is estimated from them."""
_BAR = (8, 30)
"""Smallest and largest number of characters of a bar."""


class Pace:
    """Estimator of a run's remaining time from the durations of its steps so far."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.started = clock()
        self._step_ended: float | None = None
        self._step_s: float | None = None

    def step_finished(self, own_s: float | None) -> None:
        """Record the end of a step; `own_s` is its reported duration, used for the first step only.

        Later steps count from the end of the previous step, so that saving and evaluating between them is included.
        """
        now = self._clock()
        took = own_s if self._step_ended is None else now - self._step_ended
        if took is not None:
            self._step_s = took if self._step_s is None else _NEWEST * took + (1 - _NEWEST) * self._step_s
        self._step_ended = now

    def so_far_s(self) -> float:
        """Return the seconds since the start."""
        return self._clock() - self.started

    def left_s(self, activity: Activity) -> float | None:
        """Return the estimated seconds until the last step ends; None while there is no basis for an estimate."""
        if not 0 < activity.step <= activity.steps or activity.waits_for:
            return None
        if self._step_s is not None:
            rest = max(0.0, self._step_s - activity.step_s)
            whole_rest = rest + self._step_s * (activity.steps - activity.step)
            # 0 means that the last step takes longer than expected; then nothing is known.
            return whole_rest or None
        # No step has ended yet: extrapolate from the episodes of the first one.
        sampling = activity.phase == "sampling" and activity.total
        if not sampling or activity.done < max(1.0, _FIRST_SHARE * activity.total):
            return None
        whole = activity.phase_s * activity.total / activity.done
        return max(0.0, whole - activity.phase_s) + whole * (activity.steps - activity.step)


def bar_line(activity: Activity, pace: Pace, width: int) -> str:
    """Return the line for a terminal, at most `width` characters long; the least important parts are dropped first."""
    step = f"step {activity.step}/{activity.steps}" if activity.step else ""
    counted = f" {activity.done}/{activity.total}" if activity.total else ""
    left, rate = pace.left_s(activity), _calls_per_s(activity)
    failed = sum(activity.failures.values())
    parts = {
        "step": step,
        "phase": f"{activity.phase}{counted}",
        "unit": activity.unit if activity.total else "",
        "left": "" if left is None else f"{clock_text(left)} left",
        "failed": f"{failed} failed" if failed else "",
        "newest": f"({activity.newest_failure})" if failed else "",
        "rate": f"{rate:.1f} calls/s" if rate else "",
        "so far": f"{clock_text(pace.so_far_s())} so far",
    }
    # The first round, with the empty name, drops nothing.
    for name in ("", "so far", "newest", "unit", "rate", "failed", "left", "step"):
        parts[name] = ""
        line = " ".join(filter(None, parts.values()))
        if len(line) <= width:
            break
    room = min(_BAR[1], width - len(line) - 1)
    if room >= _BAR[0] and activity.total:
        full = room * activity.done // activity.total
        line = f"{'━' * full}{'╌' * (room - full)} {line}"
    return line[:width]


def sentence(activity: Activity, pace: Pace) -> str:
    """Return the line for a file or pipe."""
    left, rate = pace.left_s(activity), _calls_per_s(activity)
    facts = [activity.phase]
    if activity.total:
        facts.append(f"{activity.done} of {activity.total} {activity.unit}")
    if rate:
        facts.append(f"{rate:.1f} calls/s")
    if activity.failures:
        facts.append(f"{sum(activity.failures.values())} failed (newest: {activity.newest_failure})")
    facts.append(f"{clock_text(pace.so_far_s())} so far")
    if left is not None:
        facts.append(f"about {clock_text(left)} left")
    step = f"step {activity.step} of {activity.steps}: " if activity.step else ""
    return f"{step}{', '.join(facts)}"


def _calls_per_s(activity: Activity) -> float:
    """Return the LLM calls per second of this phase; 0 if the phase makes none or began less than a second ago."""
    calling = activity.phase in {"sampling", "evaluating"} and activity.phase_s >= 1
    return activity.llm_calls / activity.phase_s if calling else 0.0


def clock_text(seconds: float) -> str:
    """Format a duration as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
