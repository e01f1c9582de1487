"""Shorten Python's thread switch interval while an embedded engine serves, so that the engine gets the GIL in time."""

from __future__ import annotations

import sys
import threading

SWITCH_INTERVAL_S = 5e-4
"""Longest time that a busy thread may keep the interpreter lock (GIL) from a decode step that has ended. Python's
default of 5 ms is several decode steps of a small model, so the engine would mostly wait beside a busy event loop."""

_lock = threading.Lock()
_serving = 0
_before = 0.0


def shorten_switches() -> None:
    """Shorten the process's switch interval; call `restore_switches` once for each call."""
    global _serving, _before  # noqa: PLW0603 (the switch interval itself is global)
    with _lock:
        if _serving == 0:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(min(_before, SWITCH_INTERVAL_S))
        _serving += 1


def restore_switches() -> None:
    """Restore the switch interval once the last engine of the process has ended."""
    global _serving  # noqa: PLW0603 (see above)
    with _lock:
        _serving -= 1
        if _serving == 0:
            sys.setswitchinterval(_before)
