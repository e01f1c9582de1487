"""A tool server's process: started under a guard, read and written by the event loop, ended with what it started."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import termios
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from agentrl_core.api.tools import SERVER_OUTPUT
from agentrl_core.errors import ToolServerError
from agentrl_mcp import guard
from agentrl_mcp.backend import FOLDER
from agentrl_mcp.start_checks import PYTHONS

logger = logging.getLogger(__name__)
_output = logging.getLogger(SERVER_OUTPUT)

INHERITED = (
    *("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "no_proxy", "XDG_RUNTIME_DIR", "DOCKER_HOST"),
)
"""Variables that a server gets from the run's environment; others may hold keys."""
_LAST_LINES = 5
"""Lines of output that an error message quotes."""
_MOST_LINE_CHARS = 300
_END_S = 8.0
"""Longest time that a guard may take to end everything below it."""
_REAP_S = 1.0
_MOST_REPORT_BYTES = 4096


@attrs.frozen(kw_only=True)
class Launch:
    """Facts with which every process of a server starts."""

    command: Sequence[str]
    environ: Mapping[str, str] = attrs.field(repr=False)
    """Environment; may hold keys."""
    name: str
    """Name of the server, for messages."""


def launch_of(
    command: Sequence[str], *, env: Mapping[str, str], env_from: Sequence[str], folder: Path | None, name: str
) -> Launch:
    """Return how to start a server with the command of a config.

    `python` is the interpreter of the run. Files that are named relative to the config's folder get their full path,
    and this folder is on the server's `PYTHONPATH`, because the server itself starts in a folder of its own.
    """
    folder = folder or Path.cwd()
    first, *rest = command
    if first in PYTHONS:
        first = sys.executable
    own = [_absolute(item, folder) for item in (first, *rest)]
    environ = {name: os.environ[name] for name in (*INHERITED, *env_from) if name in os.environ}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (env.get("PYTHONPATH"), str(folder))))
    return Launch(command=own, environ=environ | {key: env[key] for key in env if key != "PYTHONPATH"}, name=name)


def _absolute(item: str, folder: Path) -> str:
    # Not `resolve`: the interpreter of a virtual environment is a link that must stay one.
    found = Path(os.path.abspath(folder / item))  # noqa: PTH100
    return str(found) if item and not item.startswith("-") and found.is_file() else item


class ServerProcess:
    """A running process; `on_line` gets each line of its output, `on_end` is called once when it has ended."""

    def __init__(
        self, launch: Launch, *, most_bytes: int, on_line: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        self._launch = launch
        self._on_end = on_end
        self._said: deque[str] = deque(maxlen=_LAST_LINES)
        self.status: int | None = None
        """Exit code, or minus the signal; None while the process runs, and if it was ended by `end`."""
        self._output = _Lines(on_line, most_bytes, self._closed)
        self._errors = _Lines(self._listen, 1 << 16, lambda: None)
        self._input: asyncio.WriteTransport | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self._watch: asyncio.Task[None] | None = None
        self._is_closed = False
        self.folder = tempfile.mkdtemp(prefix="agentrl-mcp-")
        """Working folder, removed at the end."""
        self._lifeline, theirs = socket.socketpair()
        self._lifeline.setblocking(False)
        command = [item.replace(FOLDER, self.folder) for item in launch.command]
        try:
            self._popen = subprocess.Popen(  # noqa: S603 - the command of the config
                [sys.executable, "-I", "-S", guard.__file__, str(theirs.fileno()), self.folder, *command],
                env={key: value.replace(FOLDER, self.folder) for key, value in launch.environ.items()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            self._lifeline.close()
            os.rmdir(self.folder)  # noqa: PTH106 - a text
            raise ToolServerError(f"{launch.name}: cannot be started: {error}") from error
        finally:
            theirs.close()
        popen = self._popen
        self._pipes = [pipe for pipe in (popen.stdin, popen.stdout, popen.stderr) if pipe is not None]
        """Pipes that no transport has yet, and that no transport therefore closes."""

    @classmethod
    async def start(cls, launch: Launch, **options: Any) -> ServerProcess:
        """Start a process; a command that does not exist is a process that ends at once."""
        process = cls(launch, **options)
        try:
            await process._attach()
        except BaseException:
            await process.end()
            raise
        return process

    async def _attach(self) -> None:
        loop = asyncio.get_running_loop()
        self._watch = loop.create_task(self._wait())
        self._input, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self._pipes[0])
        self._transports.append(self._input)
        del self._pipes[0]
        for protocol in (self._output, self._errors):
            transport, _ = await loop.connect_read_pipe(lambda protocol=protocol: protocol, self._pipes[0])  # type: ignore[misc]
            self._transports.append(transport)
            del self._pipes[0]

    @property
    def is_alive(self) -> bool:
        """Whether the process can get another request, as far as is known."""
        return not self._is_closed

    def write(self, line: bytes) -> None:
        """Send a line."""
        if self._input is not None and not self._input.is_closing():
            self._input.write(line + b"\n")

    def unread_bytes(self) -> int:
        """Return how much of what was written last the process has certainly not read."""
        if self._input is None or self._input.is_closing():
            return 0
        pipe = self._input.get_extra_info("pipe")
        held = fcntl.ioctl(pipe.fileno(), termios.FIONREAD, bytes(4))
        return int.from_bytes(held, sys.byteorder) + self._input.get_write_buffer_size()

    def describe_end(self) -> str:
        """Return how the process ended, and what it printed last."""
        status = self.status
        if status is None:
            how = "was ended"
        else:
            how = f"ended by signal {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
        said = f"; it printed last: {' | '.join(self._said)}" if self._said else ""
        return f"{self._launch.name}: the server's process {how}{said}"

    async def end(self) -> None:
        """End the process and everything below it; returns when they are gone and the folder is removed."""
        with contextlib.suppress(OSError):
            self._lifeline.shutdown(socket.SHUT_WR)
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._wait())
        done, _ = await asyncio.wait({self._watch}, timeout=_END_S)
        if not done:
            logger.warning("%s: the guard of a server's process was killed, because it did not end", self._launch.name)
            self._popen.kill()
            await asyncio.wait({self._watch}, timeout=_END_S)

    async def _wait(self) -> None:
        """Wait for the guard's report, which it gives as its last act."""
        loop = asyncio.get_running_loop()
        told = b""
        with contextlib.suppress(OSError):
            while piece := await loop.sock_recv(self._lifeline, _MOST_REPORT_BYTES):
                told += piece
        # The guard has closed its end as its last act, or was killed: it is gone in a moment.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_REAP_S)
        with contextlib.suppress(ValueError):
            self.status = json.loads(told)["status"]
        self._closed()
        if self._input is not None and not self._input.is_closing():
            # What the server has not read does not matter any more.
            self._input.abort()
        for transport in self._transports:
            transport.close()
        for pipe in self._pipes:
            pipe.close()
        self._lifeline.close()

    def _closed(self) -> None:
        """Note that no answer comes any more."""
        if not self._is_closed:
            self._is_closed = True
            self._on_end()

    async def reported(self, timeout_s: float) -> None:
        """Wait for the guard's report about a process whose output has ended, so that messages can say how."""
        if self._watch is not None:
            await asyncio.wait({self._watch}, timeout=timeout_s)

    def _listen(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()[:_MOST_LINE_CHARS]
        if text:
            self._said.append(text)
            _output.debug("%s printed: %s", self._launch.name, text)


class _Lines(asyncio.Protocol):
    """Cuts what arrives into lines; of a line that is too long only the beginning is handed on."""

    def __init__(self, on_line: Callable[[bytes], None], most_bytes: int, on_end: Callable[[], None]) -> None:
        self._on_line, self._most_bytes, self._on_end = on_line, most_bytes, on_end
        self._begun: list[bytes] = []
        self._size = 0

    def data_received(self, data: bytes) -> None:
        """Hand on the lines that are complete."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._begun, lines[0]])
            self._begun, self._size = [], 0
            for line in lines:
                self._on_line(line)
        if self._size <= self._most_bytes:
            self._begun.append(rest)
        self._size += len(rest)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """Hand on what came last, and note the end."""
        if rest := b"".join(self._begun):
            self._on_line(rest)
        self._on_end()
