"""Run one command of this machine with a deadline and a bound on its output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

_DRAIN_S: Final = 0.2
"""Wait for the end of the output after a command has ended: what it left in the background may hold the pipe open."""


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
    # A task of its own: uvloop leaves a process running whose start is cancelled.
    starting = asyncio.create_task(_started(command, stdin, env, limit_bytes, with_errors=with_errors))
    try:
        _, process = await asyncio.shield(starting)
        # `Process.wait` of asyncio also waits for the pipes in some versions; the protocol is told of the exit alone.
        await asyncio.wait({process.exited}, timeout=timeout_s)
        if process.exited.done():
            await asyncio.wait({process.closed}, timeout=_DRAIN_S)
    finally:
        transport, process = await asyncio.shield(starting)
        status = transport.get_returncode() if process.exited.done() else None
        if not process.exited.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(transport.get_pid(), signal.SIGKILL)
            await asyncio.shield(process.exited)
        transport.close()
    return Ended(status=status, output=bytes(process.kept), cut=process.cut)


async def _started(
    command: Sequence[str], stdin: bytes, env: Mapping[str, str] | None, limit_bytes: int, *, with_errors: bool
) -> tuple[asyncio.SubprocessTransport, _Process]:
    transport, process = await asyncio.get_running_loop().subprocess_exec(
        lambda: _Process(limit_bytes),
        *command,
        stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT if with_errors else asyncio.subprocess.DEVNULL,
        env=None if env is None else dict(env),
        start_new_session=True,
    )
    if stdin:
        given: Any = transport.get_pipe_transport(0)
        given.write(stdin)
        given.write_eof()
    return transport, process


class _Process(asyncio.SubprocessProtocol):
    """Keeps the first bytes of a command's output and reads the rest away, so that the command does not block."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.kept = bytearray()
        self.cut = False
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done at the end of the output."""

    def pipe_data_received(self, fd: int, data: bytes) -> None:  # noqa: ARG002 - of the protocol
        room = self._limit - len(self.kept)
        self.kept += data[: max(room, 0)]
        self.cut = self.cut or len(data) > room

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002 - of the protocol
        if fd == 1 and not self.closed.done():
            self.closed.set_result(None)

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)
