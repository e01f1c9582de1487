"""Memory of this process as the system reports it; Linux only."""

from __future__ import annotations

import ctypes
from pathlib import Path

_PROCESS = Path("/proc/self")


def used_mb() -> float:
    """Memory in use now."""
    return _status("VmRSS")


def peak_mb() -> float:
    """Most memory in use since `forget_peak`, or since the process began."""
    return _status("VmHWM")


def forget_peak() -> None:
    """Let what is in use now be the peak."""
    (_PROCESS / "clear_refs").write_text("5", encoding="ascii")


def give_back() -> None:
    """Give memory that is free in this process back to the system, so that what is used next shows."""
    ctypes.CDLL(None).malloc_trim(0)


def _status(what: str) -> float:
    lines = (_PROCESS / "status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))
