"""The guard of a worker: waits for its end, or for the run's, and kills every process below itself."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence

try:
    import ctypes
except ImportError:
    # A Python built without ctypes: the guard then does not see processes that an agent detaches.
    ctypes = None  # type: ignore[assignment]

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""Options of Linux's `prctl`."""

_SWEEP_S = 2.0
"""Longest time that the guard spends on killing the processes below it."""
_WATCH_S = 0.1
"""Interval at which the guard measures memory, if there is a limit."""


def guard(lifeline: socket.socket, worker: int, wakeup: socket.socket) -> None:
    """Wait until the worker ends or the run is gone, kill all processes below, and report how the worker ended."""
    waiting = select.poll()
    for sock in (lifeline, wakeup):
        waiting.register(sock, select.POLLIN | select.POLLHUP)
    limit = used = 0
    while True:
        status = _reap(worker)
        if status is not None or (limit and used > limit):
            break
        events = [number for number, _ in waiting.poll(_WATCH_S * 1000 if limit else None)]
        if wakeup.fileno() in events and signal.SIGTERM in wakeup.recv(4096):
            break
        if lifeline.fileno() in events:
            # The run sends the memory limit in bytes, if there is one. End of file means: kill everything, or the run
            # is gone.
            told = lifeline.recv(64)
            if not told:
                break
            limit = int(told)
        if limit:
            used = sum(map(_resident, [worker, *descendants(worker)]))
    _sweep(worker)
    report = {"status": status, "used_bytes": used if status is None and limit and used > limit else None}
    # The run may be gone.
    with contextlib.suppress(OSError):
        lifeline.sendall(json.dumps(report).encode())
    # Never return: the code after this call in `main` is the worker's.
    os._exit(0)


def _reap(worker: int) -> int | None:
    """Collect ended children; return the worker's exit code, or minus its signal, if it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        pid, code = os.waitpid(-1, os.WNOHANG)
        while pid:
            if pid == worker:
                status = -os.WTERMSIG(code) if os.WIFSIGNALED(code) else os.WEXITSTATUS(code)
            pid, code = os.waitpid(-1, os.WNOHANG)
    return status


def _sweep(worker: int) -> None:
    """Kill everything below the guard: all that the worker started, also processes that detached themselves."""
    end = time.monotonic() + _SWEEP_S
    # Repeat until no child is left: a process may fork while the others are being killed.
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < end:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(worker, signal.SIGKILL)
            kill_all([worker, *descendants(os.getpid())])
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.002)


def kill_all(pids: Sequence[int]) -> None:
    """Kill processes; ignore those that have ended already."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """Return the children of a process; empty where the system does not list them in /proc (Linux does)."""
    found: list[int] = []
    # The process, or one of its threads, may end between the two reads.
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    return found


def descendants(pid: int) -> list[int]:
    """Return the processes below `pid`."""
    return [number for child in children(pid) for number in (child, *descendants(child))]


def _resident(pid: int) -> int:
    """Return the resident bytes of a process that are not shared with a file; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            _, resident, shared = map(int, file.read().split()[:3])
    except OSError:
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def prctl(option: int, value: int) -> None:
    """Set an option of this process (Linux)."""
    if ctypes is not None and sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
