"""Script of the process above a launched server: ends the server, and all that it started, with the run.

Started with the file descriptor of a lifeline, the seconds that the server gets to end by itself, and the server's
command line. The lifeline reaches its end when the run closes it or is gone, however it ended (also by SIGKILL).
Standard library only, because it starts beside every server. A signal to the server alone would not do: vLLM and SGLang
start processes of their own, which hold the GPUs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
"""Option of Linux's `prctl`: processes below whose parent ends become children of this one."""
_SWEEP_S = 5.0
"""Longest time spent on killing what is left."""


def main() -> None:
    """Start the server, wait for its end or for the run's, and end everything below; exit with the server's code."""
    lifeline, patience_s, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    awake, wakeup = socket.socketpair()
    for sock in (awake, wakeup):
        sock.setblocking(False)
    signal.set_wakeup_fd(wakeup.fileno())
    # Any handler makes these signals arrive at the wake-up socket. A terminal's Ctrl-C is the run's matter: the server
    # is in a session of its own, and this process waits for the lifeline.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603 (the config's)
    except OSError as error:
        sys.exit(f"the server cannot be started: {error}")
    code = _wait(server, awake, lifeline)
    if code is None:
        _end(server, patience_s)
    _sweep(server.pid)
    sys.exit(0 if code is None else code if code >= 0 else 128 - code)


def _wait(server: subprocess.Popen[bytes], awake: socket.socket, lifeline: int) -> int | None:
    """Wait until the server ends, and return its exit code; None if it is to be ended."""
    waiting = select.poll()
    for number in (awake.fileno(), lifeline):
        waiting.register(number, select.POLLIN | select.POLLHUP)
    while True:
        code = server.poll()
        if code is not None:
            return code
        ready = [number for number, _ in waiting.poll()]
        told = awake.recv(4096) if awake.fileno() in ready else b""
        if lifeline in ready or signal.SIGTERM in told:
            return None


def _end(server: subprocess.Popen[bytes], patience_s: float) -> None:
    """Ask the server to end, and wait for it; it then frees what outlives processes, such as shared memory."""
    with contextlib.suppress(ProcessLookupError):
        server.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(patience_s)


def _sweep(server: int) -> None:
    """Kill everything that is left below: also processes that have detached themselves."""
    end = time.monotonic() + _SWEEP_S
    # Repeat until no child is left: a process may fork while the others are being killed.
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < end:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(server, signal.SIGKILL)
            for pid in _descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.005)


def _descendants(pid: int) -> Iterator[int]:
    """Yield the processes below `pid`; none where the system does not list them in /proc (Linux does)."""
    # The process, or one of its threads, may end between the two reads.
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text(encoding="ascii").split():
                yield int(child)
                yield from _descendants(int(child))


if __name__ == "__main__":
    main()
