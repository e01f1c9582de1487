"""The trainer's side of the sandboxes: send a program to one, receive how it ended.

The first run starts a helper process, `inside.zygote`, which holds none of the trainer's data and forks a sandbox for
each run. A fork takes milliseconds. The helper ends with this process.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import platform
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs

from agentrl_code.inside import calls
from agentrl_code.inside.levels import CONFINED, FULL, Level

Role = Literal["script", "serve", "judge"]
"""Task of a sandbox: run a program as a script, serve a program's functions to a test, or run a test."""

_COMMAND = (sys.executable, "-I", "-S", "-B", "-X", "utf8", str(Path(__file__).with_name("inside") / "zygote.py"))
_GRACE_S = 60.0
"""Time to set up and take down a sandbox, in addition to the time of its program."""
_GOODBYE_S = 5.0
"""Time for a process to end after it was told to."""


class SandboxLostError(Exception):
    """A sandbox ended without a report; if `begun`, its program was already running and may be the cause."""

    def __init__(self, message: str, *, begun: bool) -> None:
        super().__init__(message)
        self.begun = begun


class RefusedLevelError(Exception):
    """The machine does not allow a level of isolation."""


@attrs.frozen(kw_only=True)
class Limits:
    """Resource limits of one program."""

    timeout_s: float
    memory_mb: int
    """Size of its address space."""
    file_mb: int
    """Size of all files that it writes, together."""
    output_kb: int
    """Size of its standard output."""
    packages: tuple[str, ...] = ()
    """Folders from which it may import, in addition to the standard library."""


@attrs.frozen(kw_only=True)
class Ended:
    """The outcome of a run in a sandbox."""

    status: int
    """Exit code, or minus the number of a signal."""
    why: str
    """Reason why the sandbox ended it; empty if it ended by itself."""
    out: str
    err: str
    """End of its standard error."""


class Sandboxes:
    """Creates sandboxes, from any thread and event loop, through one helper process.

    `user` is a uid and gid to run the helper process under; only root can set it.
    """

    def __init__(self, command: Sequence[str] = _COMMAND, *, user: int | None = None) -> None:
        self._command, self._user = tuple(command), user
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._owner = 0

    async def run(
        self, role: Role, code: str, limits: Limits, level: Level, *, folder: str, given: str = "",
        channel: socket.socket | None = None,
    ) -> Ended:  # fmt: skip
        """Run `code` in a new sandbox, with `given` as its standard input, and return how it ended.

        `channel` is one end of the socket between a test and the program that it calls. `folder` is the program's
        working directory, unless the level gives it a file system in memory. Cancelling this call ends the program.
        Raises `RefusedLevelError` if the machine does not allow the level, `SandboxLostError` if no report came back.
        """
        job = {**attrs.asdict(limits), "role": role, "code": code, "input": given, "level": level, "folder": folder}
        if self._user is not None and level != FULL:
            os.chown(folder, self._user, self._user)
        begun = False
        reader, writer = await self._sandbox(channel)
        try:
            data = json.dumps(job).encode("ascii")
            writer.write(struct.pack("!I", len(data)) + data)
            async with asyncio.timeout(limits.timeout_s + _GRACE_S):
                reply = await _receive(reader)
                if "refused" in reply:
                    raise RefusedLevelError(reply["refused"])
                begun = True
                return Ended(**await _receive(reader))
        except (OSError, EOFError) as error:  # TimeoutError is an OSError too
            problem = f"{type(error).__name__}: {error}"
            raise SandboxLostError(f"the sandbox ended without a report ({problem})", begun=begun) from error
        except asyncio.CancelledError:
            await asyncio.shield(_end(reader, writer))
            raise
        finally:
            writer.close()

    async def _sandbox(self, channel: socket.socket | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Have a sandbox forked, which then waits for its job. Closes `channel` here: only the sandbox may have it."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._send(theirs, channel)
            if channel is not None:
                channel.close()
            return await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            raise

    @property
    def process_id(self) -> int | None:
        """Process id of the helper process; None while there is none."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End the helper process; a later run starts another one."""
        with self._lock:
            self._stop()

    def _send(self, *sockets: socket.socket | None) -> None:
        descriptors = [item.fileno() for item in sockets if item is not None]
        with self._lock:
            # Two tries: the helper process may have been killed since the last run.
            for _ in range(2):
                try:
                    # Descriptors travel only together with data, so there is one byte of it.
                    socket.send_fds(self._started(), [b"!"], descriptors)
                except OSError:
                    self._stop()
                else:
                    return
        raise SandboxLostError("the process that creates sandboxes does not start", begun=False)

    def _started(self) -> socket.socket:
        # A fork of this process inherits the socket but must not share it: it starts a helper process of its own.
        if self._control is None or self._owner != os.getpid():
            self._control, theirs = socket.socketpair()
            with theirs:
                identity: dict[str, Any] = {} if self._user is None else {
                    "user": self._user, "group": self._user, "extra_groups": [],
                }  # fmt: skip
                self._process = subprocess.Popen(  # noqa: S603 - our own
                    [*self._command, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                    env=_environment(),
                    start_new_session=True,
                    **identity,
                )
            self._owner = os.getpid()
        return self._control

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None and self._owner == os.getpid():
            try:
                self._process.wait(_GOODBYE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._control = self._process = None


async def _end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Tell a sandbox to end its program, and wait until it has.

    A program that still runs could write into its folder while that is being removed, and leave it behind.
    """
    with contextlib.suppress(OSError, TimeoutError):
        writer.write_eof()
        async with asyncio.timeout(_GOODBYE_S):
            while await reader.read(65536):
                pass


async def _receive(reader: asyncio.StreamReader) -> Any:
    (length,) = struct.unpack("!I", await reader.readexactly(4))
    return json.loads(await reader.readexactly(length))


def _environment() -> dict[str, str]:
    """Return the environment of sandboxes: no variable of the trainer, because those may hold API keys."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {"PATH": os.defpath, "LANG": "C.UTF-8", **one_thread}


async def best_level(sandboxes: Sandboxes) -> tuple[Level | None, str]:
    """Return the better one of `full` and `confined` that this machine allows, and why it has no better one.

    Each level is tried (`refusal_of`).
    """
    if sys.platform != "linux":
        return None, f"isolation needs Linux, and this is {platform.system()}"
    if not calls.supported():
        return None, f"there is no allowlist of system calls for {platform.machine()}"
    reasons: list[str] = []
    levels: tuple[Level, ...] = (FULL, CONFINED)
    for level in levels:
        refusal = await refusal_of(level, sandboxes)
        if not refusal:
            return level, "; ".join(reasons)
        reasons.append(f"{level}: {refusal}")
    return None, "; ".join(reasons)


async def refusal_of(level: Level, sandboxes: Sandboxes) -> str:
    """Return why this machine does not allow a level, by running an empty program; empty if it does."""
    limits = Limits(timeout_s=_GRACE_S, memory_mb=512, file_mb=1, output_kb=1)
    with own_folder(level) as folder:
        try:
            await sandboxes.run("script", "pass", limits, level, folder=folder)
        except RefusedLevelError as error:
            return str(error)
    return ""


@contextlib.contextmanager
def own_folder(level: Level) -> Iterator[str]:
    """Yield a temporary folder for a program to write to, and remove it afterwards.

    At the level `full` there is none and the path is empty: the program has a file system in memory.
    """
    if level == FULL:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="agentrl-code-", ignore_cleanup_errors=True) as outer:
        os.chmod(outer, 0o711)  # noqa: PTH101, S103 - a program of another identity has to get to its own folder
        folder = os.path.join(outer, "own")  # noqa: PTH118
        os.mkdir(folder, 0o700)  # noqa: PTH102
        yield folder


SHARED = Sandboxes()
"""Sandboxes for all scorers of this process."""
atexit.register(SHARED.close)
