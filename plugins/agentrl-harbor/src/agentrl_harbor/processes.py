"""Run one command of this machine with a deadline and a bound on its output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Final

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
    receive, send = os.pipe()
    output = _Output(limit_bytes)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: output, os.fdopen(receive, "rb"))
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
                stdout=send,
                stderr=send if with_errors else asyncio.subprocess.DEVNULL,
                env=None if env is None else dict(env),
                start_new_session=True,
            )
        finally:
            os.close(send)
        status: int | None = None
        feeding = asyncio.create_task(_feed(process, stdin))
        try:
            async with asyncio.timeout(timeout_s):
                status = await process.wait()
        except TimeoutError:
            pass
        finally:
            feeding.cancel()
            if status is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.shield(process.wait())
        await asyncio.wait({output.ended}, timeout=_DRAIN_S)
    finally:
        transport.close()
    return Ended(status=status, output=bytes(output.kept), cut=output.cut)


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the command did not want all of it
            process.stdin.write(data)
            await process.stdin.drain()
            process.stdin.close()


class _Output(asyncio.Protocol):
    """Keeps the first bytes of a pipe and reads the rest away, so that the writer does not block."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.kept = bytearray()
        self.cut = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        room = self._limit - len(self.kept)
        self.kept += data[:room]
        self.cut = self.cut or len(data) > room

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - of the protocol
        if not self.ended.done():
            self.ended.set_result(None)
