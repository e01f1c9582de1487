"""Run commands, each on a thread of its own, with a deadline and a bound on the output.

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
from collections.abc import Callable, Sequence
from typing import IO, Final, Protocol

import attrs

from agentrl_core.api.processes import call_on_thread
from agentrl_core.errors import EnvironmentLostError

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


class Process(Protocol):
    """A command that was started."""

    stdin: IO[bytes] | None
    stdout: IO[bytes]
    watch: int | None
    """Descriptor that can be read once it has ended; None where the system has none."""

    def has_exited(self) -> bool:
        """Return whether it has ended, without collecting it: `kill` may be on its way."""
        ...

    def kill(self) -> None:
        """Kill it with its process group; not called after `wait`."""
        ...

    def wait(self) -> int:
        """Return its exit code, or minus the number of a signal."""
        ...

    def close(self) -> None:
        """Close its pipes."""
        ...


async def run(
    command: Sequence[str],
    *,
    timeout_s: float,
    limit_bytes: int,
    stdin: bytes = b"",
    with_errors: bool = True,
) -> Ended:
    """Run a command of this machine, as `follow` does; `with_errors` adds its standard error to the output."""
    return await follow(
        lambda: _HostProcess(command, has_input=bool(stdin), with_errors=with_errors),
        timeout_s=timeout_s, limit_bytes=limit_bytes, stdin=stdin,
    )  # fmt: skip


async def follow(start: Callable[[], Process], *, timeout_s: float, limit_bytes: int, stdin: bytes = b"") -> Ended:
    """Start a command, on a thread of its own, and run it to its end.

    At the deadline, and if this call is cancelled, it is killed with the processes of its group.
    """
    work = _Command(start, stdin)
    running = asyncio.create_task(call_on_thread(lambda: work.run(timeout_s, limit_bytes), name="agentrl-harbor"))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        work.kill()
        with contextlib.suppress(OSError, EnvironmentLostError):
            await running
        raise


class _Command:
    """One command, which any thread may kill."""

    def __init__(self, start: Callable[[], Process], stdin: bytes) -> None:
        self._start, self._stdin = start, memoryview(stdin)
        self._lock = threading.Lock()
        self._process: Process | None = None
        self._killed = self._collected = False

    def kill(self) -> None:
        """Kill the command and its group, now or as soon as it has started."""
        with self._lock:
            self._killed = True
            # Once it is collected, its number may belong to another process.
            if self._process is not None and not self._collected:
                self._process.kill()

    def run(self, timeout_s: float, limit_bytes: int) -> Ended:
        """Run the command to its end."""
        with contextlib.closing(self._started()) as process, selectors.DefaultSelector() as selector:
            output = _Output(limit_bytes)
            for item, events in (
                (process.stdout, selectors.EVENT_READ),
                (process.stdin, selectors.EVENT_WRITE),
                (process.watch, selectors.EVENT_READ),
            ):
                if item is not None:
                    selector.register(item, events)
            in_time = self._serve(process, selector, output, time.monotonic() + timeout_s)
            if process.watch is not None:
                selector.unregister(process.watch)
            if not in_time:
                self.kill()
            self._serve(process, selector, output, time.monotonic() + _DRAIN_S, until_closed=True)
            with self._lock:
                status = process.wait()
                self._collected = True
        return Ended(status=status if in_time else None, output=bytes(output.kept), cut=output.cut)

    def _serve(
        self,
        process: Process,
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
            elif process.has_exited():
                return True
            if not until_closed and process.watch is None:
                left = min(left, _LOOK_S)
            for key, _ in selector.select(left):
                if key.fileobj is process.stdin:
                    self._feed(selector, process)
                elif key.fileobj is process.stdout and not output.read(key.fd):
                    selector.unregister(key.fileobj)
        return False

    def _started(self) -> Process:
        with self._lock:
            self._process = self._start()
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)
        if self._killed:
            self.kill()
        return self._process

    def _feed(self, selector: selectors.BaseSelector, process: Process) -> None:
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


class _HostProcess:
    """A process of this machine."""

    def __init__(self, command: Sequence[str], *, has_input: bool, with_errors: bool) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - the commands of this package
            command,
            stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if with_errors else subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        self.stdin, self.stdout = self._process.stdin, self._process.stdout
        self.watch = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None

    def has_exited(self) -> bool:
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> int:
        return self._process.wait()

    def close(self) -> None:
        for pipe in (self.stdin, self.stdout):
            if pipe is not None:
                pipe.close()
        if self.watch is not None:
            os.close(self.watch)


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
