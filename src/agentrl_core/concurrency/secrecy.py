"""Keeps what is the run's alone, its admin key above all, from the other processes of its user."""

from __future__ import annotations

import ctypes
import os
import sys

_PR_SET_DUMPABLE = 4

_withheld: set[str] = set()


def withhold(variable: str) -> None:
    """Pass an environment variable on to no process for agents, scorers and rewards that starts from now on."""
    _withheld.add(variable)


def environment() -> dict[str, str]:
    """Return the environment for such a process."""
    return {name: text for name, text in os.environ.items() if name not in _withheld}


def seal() -> None:
    """Let no other process of this user read the memory and the environment of this one (Linux).

    Removing a variable from `os.environ` is not enough: `/proc/PID/environ` shows what a process was started with.
    Debuggers and profilers cannot attach either from now on, and there are no core dumps; root may do all of that.
    Processes that this one starts are not concerned.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
