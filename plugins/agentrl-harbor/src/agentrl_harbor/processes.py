"""Run commands of this machine, each on a thread of its own, with a deadline and a bound on the output.

Not by the event loop's own subprocesses: uvloop forks, which takes tens of milliseconds in a process that has loaded a
model, and stops the loop for that time. `subprocess` uses vfork.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from agentrl_core.api.processes import call_on_thread

_DRAIN_S: Final = 0.2
"""Wait for the end of the output after a command has ended: what it left in the background may hold the pipe open."""
_LOOK_S: Final = 0.05
"""Interval of looks at a process where the system has no descriptors of processes (macOS)."""
_CHUNK: Final = 65_536


@attrs.frozen(kw_only=True)
class Ended:
    """The end of a command."""

    status: int | None
    """Exit code, or minus the number of a signal; None: it was ended at its deadline."""
    output: bytes
    """Its first bytes, as many as were asked for."""
    cut: bool = False
    """Whether there was more output."""

    @property
    def text(self) -> str:
        """The output as text."""
        return self.output.decode("utf-8", "replace")


async def run(
    command: Sequence[str],
    *,
    timeout_s: float,
    limit_bytes: int,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    with_errors: bool = True,
) -> Ended:
    """Run a command; `with_errors` adds its standard error to the output.

    At the deadline, and if this call is cancelled, it is killed with the processes of its group.
    """
    work = _Command(command, stdin, env, with_errors=with_errors)
    running = asyncio.create_task(call_on_thread(lambda: work.run(timeout_s, limit_bytes), name="agentrl-harbor"))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        work.kill()
        with contextlib.suppress(OSError):
            await running
        raise


class _Command:
    """One command, which any thread may kill."""

    def __init__(
        self, command: Sequence[str], stdin: bytes, env: Mapping[str, str] | None, *, with_errors: bool
    ) -> None:
        self._command, self._stdin, self._env, self._with_errors = command, memoryview(stdin), env, with_errors
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    def kill(self) -> None:
        """Kill the command and its group, now or as soon as it has started."""
        with self._lock:
            self._killed = True
            # After `wait` its number may belong to another process.
            if self._process is not None and self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def run(self, timeout_s: float, limit_bytes: int) -> Ended:
        """Run the command to its end."""
        with self._started() as process, selectors.DefaultSelector() as selector:
            output = _Output(limit_bytes)
            watch = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None
            try:
                for item, events in (
                    (process.stdout, selectors.EVENT_READ),
                    (process.stdin, selectors.EVENT_WRITE),
                    (watch, selectors.EVENT_READ),
                ):
                    if item is not None:
                        selector.register(item, events)
                in_time = self._serve(process, selector, output, time.monotonic() + timeout_s)
                if watch is not None:
                    selector.unregister(watch)
                if not in_time:
                    self.kill()
                self._serve(process, selector, output, time.monotonic() + _DRAIN_S, until_closed=True)
            finally:
                if watch is not None:
                    os.close(watch)
            with self._lock:
                status = process.wait()
        return Ended(status=status if in_time else None, output=bytes(output.kept), cut=output.cut)

    def _serve(
        self,
        process: subprocess.Popen[bytes],
        selector: selectors.BaseSelector,
        output: _Output,
        deadline: float,
        *,
        until_closed: bool = False,
    ) -> bool:
        """Serve the pipes until the process has ended, or its output is closed; return False at the deadline."""
        while (left := deadline - time.monotonic()) > 0:
            if until_closed:
                if process.stdout not in selector.get_map():
                    return True
            elif _has_exited(process):
                return True
            if not until_closed and not hasattr(os, "pidfd_open"):
                left = min(left, _LOOK_S)
            for key, _ in selector.select(left):
                if key.fileobj is process.stdin:
                    self._feed(selector, process)
                elif key.fileobj is process.stdout and not output.read(key.fd):
                    selector.unregister(key.fileobj)
        return False

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            self._process = subprocess.Popen(  # noqa: S603 - the commands of this package
                self._command,
                stdin=subprocess.PIPE if self._stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if self._with_errors else subprocess.DEVNULL,
                env=None if self._env is None else dict(self._env),
                start_new_session=True,
            )
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)
        if self._killed:
            self.kill()
        return self._process

    def _feed(self, selector: selectors.BaseSelector, process: subprocess.Popen[bytes]) -> None:
        """Write what the command takes; close its input at the end, or when it wants no more."""
        assert process.stdin is not None  # noqa: S101 - a pipe
        try:
            self._stdin = self._stdin[os.write(process.stdin.fileno(), self._stdin[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._stdin = memoryview(b"")
        if not self._stdin:
            selector.unregister(process.stdin)
            process.stdin.close()


class _Output:
    """The first bytes of a command's output; the rest is read away, so that the command does not block."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.kept = bytearray()
        self.cut = False

    def read(self, descriptor: int) -> bool:
        """Read some; return False at the end."""
        data = os.read(descriptor, _CHUNK)
        room = self._limit - len(self.kept)
        self.kept += data[: max(room, 0)]
        self.cut = self.cut or len(data) > room
        return bool(data)


def _has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended, without collecting it: `kill` may be on its way."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
