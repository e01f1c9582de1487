"""Keep the run's secrets, above all its admin key, from other processes of the same user, such as agents."""

from __future__ import annotations

import ctypes
import os
import sys

_PR_SET_DUMPABLE = 4
"""Option of Linux's `prctl`: whether others may read the process's memory."""

_withheld: set[str] = set()


def withhold(variable: str) -> None:
    """Leave an environment variable out of what `environment` returns from now on."""
    _withheld.add(variable)


def environment() -> dict[str, str]:
    """Return the environment of a process for an agent, a scorer or a reward, without withheld variables."""
    return {name: text for name, text in os.environ.items() if name not in _withheld}


def seal() -> None:
    """Keep other processes of this user from reading this process's memory and environment (Linux).

    Removing a variable from `os.environ` is not enough: `/proc/PID/environ` shows what a process was started with. From
    now on debuggers and profilers cannot attach either, and there are no core dumps; root still can do all of that.
    Processes that this one starts are not affected.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
