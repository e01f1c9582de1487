"""Keep the run's secrets, above all its admin key, from other processes of the same user, such as agents."""

from __future__ import annotations

import ctypes
import os
import sys

_PR_SET_DUMPABLE = 4
"""Option of Linux's `prctl`: whether others may read the process's memory."""

_SHORTEST = 8
"""Least characters of a value that is masked: a shorter one is no secret, and may occur in any text."""

_withheld: set[str] = set()
_masked: set[str] = set()


def withhold(variable: str) -> None:
    """Leave an environment variable out of what `environment` returns from now on, and mask its value in texts."""
    _withheld.add(variable)
    mask(variable)


def mask(variable: str) -> None:
    """Let `without_secrets` replace the value of an environment variable from now on."""
    _masked.add(variable)


def without_secrets(text: str) -> str:
    """Return a text in which the values of masked environment variables are replaced by their names.

    An agent in this process can read them, and an exception of its client may quote them.
    """
    for variable in _masked:
        if len(value := os.environ.get(variable, "")) >= _SHORTEST:
            text = text.replace(value, f"<{variable}>")
    return text


def environment() -> dict[str, str]:
    """Return the environment of a process for an agent, a scorer or a reward, without withheld variables."""
    return {name: text for name, text in os.environ.items() if name not in _withheld}


def seal() -> bool:
    """Keep other processes of this user from reading this process's memory and environment; return False if not Linux.

    Removing a variable from `os.environ` is not enough: `/proc/PID/environ` shows what a process was started with. From
    now on debuggers and profilers cannot attach either, and there are no core dumps; root still can do all of that.
    Processes that this one starts are not affected.
    """
    if sys.platform != "linux":
        return False
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    return True
