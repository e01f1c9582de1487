"""One worker process as the run sees it: start, episodes, output, end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from agentrl_core.errors import AgentRLError, ConfigError, DataError, PluginError, RunError
from agentrl_core.rollout.failures import RemoteFailure, tell
from agentrl_core.rollout.subproc.launch import WORKER
from agentrl_core.rollout.subproc.output import Output
from agentrl_core.rollout.subproc.worker import frame, receive

if TYPE_CHECKING:
    from agentrl_core.rollout.subproc.launch import Launch

CANCEL_GRACE_S = 3.0
"""Time that a cancelled agent has to clean up before its process is killed."""
_TURN_S = 0.5
"""Longest that the event loop of an agent may take to hear of that; one that blocks it will not clean up."""
_STOP_S = 2.0
_GUARD_S = 5.0
"""Longest that the guard of a worker may take to kill what is below it."""
_REPORT_S = 2.0
_LOOK_S = 0.2
_HEADER_BYTES = 8
_KINDS: Mapping[str, type[AgentRLError]] = {
    item.__name__: item for item in (ConfigError, DataError, PluginError, RunError)
}


class WorkerProcess:
    """A worker that has the workflow ready; made by `start`, then used on one event loop."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self.output = Output()
        self.is_async = True
        self.name = ""
        self.killed = False
        self._number = 0
        self._buffer = bytearray()
        self._report = b""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Task[None] | None = None
        self._control, control = socket.socketpair()
        self._lifeline, lifeline = socket.socketpair()
        out, into = os.pipe()
        self._out = open(out, "rb", buffering=0)  # noqa: SIM115, PTH123 - closed by `close`
        os.set_blocking(out, False)
        try:
            self._popen = subprocess.Popen(  # noqa: S603 - what the config names as the interpreter
                [launch.interpreter, WORKER, str(control.fileno()), str(lifeline.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=into,
                stderr=into,
                env=dict(launch.environ),
                pass_fds=(control.fileno(), lifeline.fileno()),
                start_new_session=True,  # Ctrl-C is the run's business
            )
        except OSError as error:
            self._close_files()
            raise ConfigError(f"{launch.where}: {launch.interpreter} cannot be started: {error}") from error
        finally:
            control.close()
            lifeline.close()
            os.close(into)

    @classmethod
    def start(cls, launch: Launch, *, abort: threading.Event | None = None) -> WorkerProcess:
        """Start a worker and wait until its workflow is ready; blocks.

        Raises `UsageError` where it cannot be loaded, `RunError` where the process ends, takes too long, or
        `abort` is set.
        """
        process = cls(launch)
        try:
            process._begin(abort or threading.Event())
        except BaseException:
            process.end_now()
            raise
        return process

    def _begin(self, abort: threading.Event) -> None:
        launch = self._launch
        if launch.memory_mb is not None:
            self._lifeline.sendall(str(launch.memory_mb * 2**20).encode())
        self._control.settimeout(launch.limit_s)
        with contextlib.suppress(ConnectionError, TimeoutError):  # it has ended already; told below
            self._control.sendall(frame(launch.start, launch.payload))
        end = time.monotonic() + launch.limit_s
        sources: list[Any] = [self._control, self._lifeline, self._out]
        while select.select(sources, [], [], _LOOK_S)[0] in ([], [self._out]):
            self.drain()
            if abort.is_set():
                raise RunError("the run has ended")
            if time.monotonic() > end:
                raise RunError(
                    f"{launch.where}: the workflow was not ready within {launch.limit_s:g} s in {launch.interpreter}"
                    f"{self._said()}"
                )
        message = None
        with contextlib.suppress(ConnectionError, TimeoutError):
            message = receive(self._control)
        self.drain()
        if message is None:
            self._wait_now()
            raise PluginError(
                f"{launch.where}: {launch.interpreter} {self._how()} before the workflow was ready{self._said()}"
                + ("" if launch.own else "; expected Python 3.8 or newer with all that the workflow imports")
            )
        answer = message[0]
        if answer["op"] == "refused":
            raise self._refusal(answer)
        self.name, self.is_async = answer["name"], answer["is_async"]
        self._control.setblocking(False)
        self._lifeline.setblocking(False)

    def _refusal(self, answer: Mapping[str, Any]) -> AgentRLError:
        if answer["kind"] in _KINDS:
            return _KINDS[answer["kind"]](answer["message"])
        at = f" (at {answer['place']})" if answer["place"] else ""
        text = tell(answer["message"])
        return PluginError(
            f"{self._launch.where}: building the workflow in a process of its own failed: {answer['kind']}: {text}{at}"
        )

    def attach(self) -> None:
        """Belong to the running event loop from now on; nothing to do the second time."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._out.fileno(), self.drain)
            self._ended = self._loop.create_task(self._watch())

    @property
    def alive(self) -> bool:
        """Whether it can run another episode, as far as is known."""
        return not self.killed and (self._ended is None or not self._ended.done())

    async def run(self, header: Mapping[str, Any], body: bytes) -> dict[str, Any] | None:
        """Run one episode and return the worker's answer; None where it had ended before.

        Raises `RemoteFailure` where the process ends in the middle. Cancelling this cancels the agent; one that
        goes on for `CANCEL_GRACE_S`, or is not in an await, is killed.
        """
        self._number += 1
        began = False
        try:
            await self._write({"op": "run", "id": self._number, **header}, body)
            if await self._read() is None:
                return None
            began = True
            answer = await self._read()
        except asyncio.CancelledError:
            if not began or not self.is_async or not await self._cancel():
                self.kill()
            raise
        finally:
            self.drain()
        if answer is None:
            await self._end()
            raise RemoteFailure(
                "AgentProcessDied", f"AgentProcessDied: the agent's process {self._how()}{self._said()}"
            )
        return answer

    async def _end(self) -> None:
        """Wait for the end of a worker that has closed its side: how it was is known a moment later."""
        if self._ended is not None:
            await asyncio.wait({self._ended}, timeout=_REPORT_S)
        self.kill()
        await self.ended()

    async def _cancel(self) -> bool:
        """Cancel the episode; return whether the worker has ended it in time."""
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):  # a second cancellation: enough patience
            async with asyncio.timeout(_TURN_S):
                await self._write({"op": "cancel", "id": self._number})
                answer = await self._read()
            if answer is not None and answer["op"] == "cancelling":
                async with asyncio.timeout(CANCEL_GRACE_S):
                    answer = await self._read()
            return answer is not None
        return False

    async def _write(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):  # it has ended, as reading will tell
            await loop.sock_sendall(self._control, frame(header, body))

    async def _read(self) -> dict[str, Any] | None:
        """Return the next message; None at the end. May be cancelled without loss."""
        loop = asyncio.get_running_loop()
        while True:
            if len(self._buffer) >= _HEADER_BYTES:
                size = int.from_bytes(self._buffer[:4], "big")
                end = _HEADER_BYTES + size + int.from_bytes(self._buffer[4:_HEADER_BYTES], "big")
                if len(self._buffer) >= end:
                    header: dict[str, Any] = json.loads(self._buffer[_HEADER_BYTES : _HEADER_BYTES + size])
                    del self._buffer[:end]
                    return header
            try:
                piece = await loop.sock_recv(self._control, 2**16)
            except ConnectionError:
                return None
            if not piece:
                return None
            self._buffer += piece

    def drain(self) -> None:
        """Take what the agent has written so far."""
        with contextlib.suppress(ValueError):  # closed
            while piece := self._out.read(2**16):
                self.output.add(piece)
            if piece == b"" and self._loop is not None:
                self._loop.remove_reader(self._out.fileno())

    def kill(self) -> None:
        """Have the guard kill the worker, and all that it started."""
        if self.killed:
            return
        self.killed = True
        with contextlib.suppress(OSError):  # it has ended already
            self._lifeline.shutdown(socket.SHUT_WR)

    async def stop(self) -> None:
        """Let an idle worker end by itself, within limits."""
        if self.alive and self._ended is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self._write({"op": "stop"})
                    await asyncio.shield(self._ended)
        self.kill()
        await self.ended()

    async def ended(self) -> None:
        """Wait for the end of all its processes, and free what belongs to it."""
        if self._ended is None:
            self.end_now()
            return
        await asyncio.wait({self._ended}, timeout=_GUARD_S)
        if not self._ended.done():
            self._popen.kill()
            await asyncio.wait({self._ended}, timeout=_GUARD_S)
        self.drain()
        self._close_files()

    async def _watch(self) -> None:
        """Wait for the guard's report, and its end."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while piece := await loop.sock_recv(self._lifeline, 4096):
                self._report += piece
        await loop.run_in_executor(None, self._popen.wait)

    def end_now(self) -> None:
        """Kill it and wait for its end; for the time without an event loop."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout=_GUARD_S)
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait()
        self._close_files()

    def _wait_now(self) -> None:
        """Do as `_end` does, without an event loop."""
        self._lifeline.settimeout(_REPORT_S)
        for _ in range(2):
            with contextlib.suppress(OSError):
                while piece := self._lifeline.recv(4096):
                    self._report += piece
            self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout=_GUARD_S)
        self.drain()

    def _close_files(self) -> None:
        if self._loop is not None and not self._loop.is_closed() and not self._out.closed:
            for item in (self._control, self._lifeline, self._out):  # their numbers will be used again
                self._loop.remove_reader(item.fileno())
        for item in (self._control, self._lifeline, self._out):
            item.close()

    def _how(self) -> str:
        """Say how the process ended, as a verb phrase."""
        try:
            report = orjson.loads(self._report)
        except orjson.JSONDecodeError:  # the guard was killed, too
            report = {"status": self._popen.returncode, "used_bytes": None}
        if report["used_bytes"] is not None:
            used = report["used_bytes"] // 2**20
            return f"was killed: it used {used} MB, and rollout.agent.subproc_max_memory_mb is {self._launch.memory_mb}"
        status = report["status"]
        if status is None:
            return "was killed"
        if status >= 0:
            return f"ended with exit code {status}"
        name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
        why = " (the system does that where memory runs out)" if -status == signal.SIGKILL else ""
        return f"was ended by {name}{why}"

    def _said(self) -> str:
        """What it wrote last, if anything."""
        last = self.output.last_lines()
        return f"; it wrote last: {last}" if last else ""
