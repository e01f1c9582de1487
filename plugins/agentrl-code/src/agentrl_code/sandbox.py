"""Sandboxes, as the trainer uses them: what to run goes in, how it ended comes out.

A process without secrets, `inside.zygote`, is started with the first sandbox and forks one for each run, which costs
milliseconds. It ends with this process.
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
"""Run a program; evaluate what a test asks of it; run a test."""

_COMMAND = (sys.executable, "-I", "-S", "-B", "-X", "utf8", str(Path(__file__).with_name("inside") / "zygote.py"))
_GRACE_S = 60.0
"""Time to set a sandbox up and to take it down, beyond the time of its program."""
_GOODBYE_S = 5.0


class SandboxLostError(Exception):
    """A sandbox ended without a report; `begun` says whether its program was running, and may be why."""

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
    """Address space."""
    file_mb: int
    """All files together."""
    output_kb: int
    """Longest output."""
    packages: tuple[str, ...] = ()
    """Folders to import from, beside Python's own."""


@attrs.frozen(kw_only=True)
class Ended:
    """The end of a run: status, reason and output."""

    status: int
    """Exit code, or minus the number of a signal."""
    why: str
    """Why it was ended; empty where it ended by itself."""
    out: str
    err: str
    """The last that it wrote there."""


class Sandboxes:
    """Makes sandboxes, for any thread and event loop. `user` (a uid and gid) is who starts them, for root alone."""

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
        """Run `code` with `given` as its input; `channel` joins a test and the program that it asks.

        `folder` is the program's own where its level has no files of its own. Cancelling this ends the program.
        Raises `RefusedLevelError` where it could not be confined so, `SandboxLostError` where there is no report.
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
        except (OSError, EOFError) as error:  # a time that is over is an OSError too
            problem = f"{type(error).__name__}: {error}"
            raise SandboxLostError(f"the sandbox ended without a report ({problem})", begun=begun) from error
        except asyncio.CancelledError:
            await asyncio.shield(_end(reader, writer))
            raise
        finally:
            writer.close()

    async def _sandbox(self, channel: socket.socket | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Have a sandbox forked, which waits for its job; it alone holds `channel` then."""
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
        """The process that makes sandboxes, while there is one."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End the process that makes sandboxes; a later run starts another."""
        with self._lock:
            self._stop()

    def _send(self, *sockets: socket.socket | None) -> None:
        descriptors = [item.fileno() for item in sockets if item is not None]
        with self._lock:
            for _ in range(2):  # it may have been killed since the last time
                try:
                    socket.send_fds(self._started(), [b"!"], descriptors)
                except OSError:
                    self._stop()
                else:
                    return
        raise SandboxLostError("the process that makes sandboxes does not start", begun=False)

    def _started(self) -> socket.socket:
        if self._control is None or self._owner != os.getpid():  # a fork of this process starts its own
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
    """Have a program ended, and wait until it is: what it still wrote would outlast the removal of its folder."""
    with contextlib.suppress(OSError, TimeoutError):
        writer.write_eof()
        async with asyncio.timeout(_GOODBYE_S):
            while await reader.read(65536):
                pass


async def _receive(reader: asyncio.StreamReader) -> Any:
    (length,) = struct.unpack("!I", await reader.readexactly(4))
    return json.loads(await reader.readexactly(length))


def _environment() -> dict[str, str]:
    """Nothing of ours: no key of a provider is a program's business."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {"PATH": os.defpath, "LANG": "C.UTF-8", **one_thread}


async def best_level(sandboxes: Sandboxes) -> tuple[Level | None, str]:
    """Return the best of `full` and `confined` that this machine allows, and what keeps it from a better one."""
    if sys.platform != "linux":
        return None, f"on {platform.system()} nothing keeps programs from the machine"
    if not calls.supported():
        return None, f"no list of system calls is known for {platform.machine()}"
    reasons = []
    limits = Limits(timeout_s=_GRACE_S, memory_mb=512, file_mb=1, output_kb=1)
    levels: tuple[Level, ...] = (FULL, CONFINED)
    for level in levels:
        with own_folder(level) as folder:
            try:
                await sandboxes.run("script", "pass", limits, level, folder=folder)
            except RefusedLevelError as error:
                reasons.append(f"{level}: {error}")
            else:
                return level, "; ".join(reasons)
    return None, "; ".join(reasons)


@contextlib.contextmanager
def own_folder(level: Level) -> Iterator[str]:
    """Make a folder in which a program may write, and remove it with all that is in it; fully isolated, it has one."""
    if level == FULL:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="agentrl-code-", ignore_cleanup_errors=True) as outer:
        os.chmod(outer, 0o711)  # noqa: PTH101, S103 - a program of another identity has to get to its own folder
        folder = os.path.join(outer, "own")  # noqa: PTH118
        os.mkdir(folder, 0o700)  # noqa: PTH102
        yield folder


SHARED = Sandboxes()
"""Those of this process."""
atexit.register(SHARED.close)
