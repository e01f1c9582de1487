"""Script that starts a tool server's process, and ends it with everything below it when the run wants it or is gone.

    python -I -S guard.py LIFELINE FOLDER COMMAND…

`LIFELINE` is the number of a socket: its end means that the server must go. As the parent may be killed at any time,
it is a process of its own that does this: it collects orphans (Linux), so that nothing that detaches itself from the
server is left, removes the working folder, and reports the server's exit status over the socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time

try:
    import ctypes
except ImportError:
    # A Python built without ctypes: the guard then does not see processes that a server detaches.
    ctypes = None  # type: ignore[assignment]

_SUBREAPER = 36
"""Option of Linux's `prctl`: orphans below become children of this process."""
_TERMINATE_S = 1.0
"""Time that the server has to end by itself after SIGTERM, as `docker run` needs to end its container."""
_SWEEP_S = 3.0


def main() -> None:
    """Run the command, wait for its end or for that of the lifeline, and clean up."""
    number, folder, *command = sys.argv[1:]
    lifeline = socket.socket(fileno=int(number))
    if ctypes is not None and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    waker, wakeup = socket.socketpair()
    for end in (waker, wakeup):
        end.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    server = _start(command, folder, lifeline)
    # It ends by the lifeline alone. Only now, because the server must not ignore these.
    for kind in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(kind, signal.SIG_IGN)
    # The server's own ends must be the only ones, so that the run sees the end of its output.
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    status = _wait(server, lifeline, wakeup)
    if status is None:
        status = _terminate(server)
    _sweep(server)
    shutil.rmtree(folder, ignore_errors=True)
    # The run may be gone.
    with contextlib.suppress(OSError):
        lifeline.sendall(json.dumps({"status": status}).encode())
    os._exit(0)


def _start(command: list[str], folder: str, lifeline: socket.socket) -> int:
    """Start the server in a session of its own, and return its pid."""
    server = os.fork()
    if server:
        return server
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.chdir(folder)
        os.set_inheritable(lifeline.fileno(), False)
        os.execvp(command[0], command)  # noqa: S606 - the command of the config
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(127)


def _wait(server: int, lifeline: socket.socket, wakeup: socket.socket) -> int | None:
    """Wait until the server has ended, and return its status; None if it must be ended."""
    waiting = select.poll()
    for sock in (lifeline, wakeup):
        waiting.register(sock, select.POLLIN | select.POLLHUP)
    while (status := _reap(server)) is None:
        ready = [number for number, _ in waiting.poll()]
        if wakeup.fileno() in ready:
            wakeup.recv(4096)
        if lifeline.fileno() in ready:
            return None
    return status


def _terminate(server: int) -> int | None:
    """Ask the server to end, and wait a moment; return its status if it has ended."""
    # The pid, too: a server that was just started may have no process group yet.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(server, signal.SIGTERM)
    end = time.monotonic() + _TERMINATE_S
    while (status := _reap(server)) is None and time.monotonic() < end:
        time.sleep(0.005)
    return status


def _reap(server: int) -> int | None:
    """Collect ended children; return the server's exit code, or minus its signal, if it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        pid, code = os.waitpid(-1, os.WNOHANG)
        while pid:
            if pid == server:
                status = -os.WTERMSIG(code) if os.WIFSIGNALED(code) else os.WEXITSTATUS(code)
            pid, code = os.waitpid(-1, os.WNOHANG)
    return status


def _sweep(server: int) -> None:
    """Kill everything below, again until no child is left: a process may fork while the others are being killed."""
    end = time.monotonic() + _SWEEP_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < end:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(server, signal.SIGKILL)
            for pid in _below(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.002)


def _below(pid: int) -> list[int]:
    """Return the processes below `pid`; empty where the system does not list them in /proc (Linux does)."""
    children: list[int] = []
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        children = list(map(int, file.read().split()))
    return [number for child in children for number in (child, *_below(child))]


if __name__ == "__main__":
    main()
