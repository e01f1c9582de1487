"""Server process of a benchmark: controlled by JSON lines; its CPU seconds and memory are read from the system."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

_MIB = 2**20
_SILENCE_S = 600
"""Longer than any question takes."""


class Server:
    """One server's process and those that it started."""

    def __init__(
        self, command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, answers: bool = True
    ) -> None:
        """`answers`: whether stdout answers questions; otherwise it goes into the log, too."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as stderr:
            self._popen = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if answers else stderr,
                stderr=stderr,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        self._log = log
        self._process = psutil.Process(self._popen.pid)

    @classmethod
    def of_module(cls, module: str, *arguments: str, log: Path) -> Self:
        """Start one of the benchmark's own modules."""
        return cls([sys.executable, "-m", module, *arguments], log=log)

    def ask(self, **question: Any) -> Any:
        """Send a question as a line of JSON, wait for the line that answers it."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps(question).encode() + b"\n")
        self._popen.stdin.flush()
        return self.read()

    def read(self) -> Any:
        """Wait for a line of JSON; a server that says nothing is at fault."""
        assert self._popen.stdout is not None
        if not select.select([self._popen.stdout], [], [], _SILENCE_S)[0]:
            raise RuntimeError(f"the server says nothing:\n{self.log_tail()}")
        line = self._popen.stdout.readline()
        if not line:
            raise RuntimeError(f"the server ended:\n{self.log_tail()}")
        return json.loads(line)

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def cpu_seconds(self) -> float:
        """CPU seconds so far, of all its processes and threads."""
        return sum(_cpu_seconds(process.pid) for process in self._processes())

    def rss_mb(self) -> float:
        """Resident memory of all its processes, in MiB."""
        return sum(process.memory_info().rss for process in self._processes()) / _MIB

    def log_tail(self) -> str:
        """Return the end of what it wrote to stderr."""
        return self._log.read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        """End it as a crash does."""
        os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()

    def close(self) -> None:
        """End it and what it started."""
        if self.alive:
            os.killpg(self._popen.pid, signal.SIGTERM)
            try:
                self._popen.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self._popen.pid, signal.SIGKILL)
                self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _processes(self) -> list[psutil.Process]:
        return [self._process, *self._process.children(recursive=True)]


def _cpu_seconds(pid: int) -> float:
    """Return a process's CPU time from its own clock, to the nanosecond: /proc counts in hundredths of a second."""
    if sys.platform == "linux":
        return time.clock_gettime((~pid << 3) | 2)
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
