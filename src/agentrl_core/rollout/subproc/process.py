"""The run's side of one agent worker process: start it, run episodes in it, cancel them, read its output, end it.

The agent's code runs in the worker, so nothing that the worker sends is trusted. Each request has a random id, and an
episode counts only after the worker has confirmed that it is over. Unexpected messages before that fail this episode;
later ones only cost the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import selectors
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentrl_core.errors import ConfigError, PluginError, RunError
from agentrl_core.rollout.failures import RemoteFailure
from agentrl_core.rollout.subproc.asks import Asks
from agentrl_core.rollout.subproc.inside.frames import frame
from agentrl_core.rollout.subproc.launch import WORKER
from agentrl_core.rollout.subproc.output import Output
from agentrl_core.rollout.subproc.worker_messages import (
    READ_BYTES,
    Frames,
    ProtocolError,
    check,
    how_it_ended,
    read_answer,
    read_refusal,
    read_start,
)

if TYPE_CHECKING:
    from agentrl_core.api.context import WorkflowContext
    from agentrl_core.rollout.subproc.launch import Launch

CANCEL_GRACE_S = 3.0
"""Seconds that a cancelled agent has to clean up before its process is killed."""
_TURN_S = 0.5
"""Longest wait for the agent's event loop to report the cancellation; a loop that is blocked for longer cannot clean
up."""
_STOP_S = 2.0
"""Longest time that an idle worker has to end by itself."""
_GUARD_S = 5.0
"""Longest time that a worker's guard may take to kill all processes below it."""
_REPORT_S = 2.0
"""Longest wait for the guard's report after the worker has closed its connection."""
_LOOK_S = 0.2
"""Interval at which `abort` is checked while a worker starts."""
_AWAKE_S = 30.0
"""Longest time that a worker may take to begin an episode, and to confirm the end of one."""
_REPORT_BYTES = 4096
"""Longest report of a guard that is read."""
_DRAIN_BYTES = 2**20
"""Output taken at a time, as much as a pipe can hold: an agent that never stops writing must not hold up the run."""
_ANSWERS = ("done", "raised")
"""Messages that end an episode."""


class NotBegunError(Exception):
    """The process cannot run the next episode; the message continues the words `the agent's process`."""


class _EndedError(Exception):
    """The worker has closed its side of the control socket."""


class WorkerProcess:
    """A worker process with the workflow loaded. Create it by `start`, then use it on one event loop."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self.output = Output()
        self.is_async = True
        self.name = ""
        self.killed = False
        self._frames = Frames()
        self._writing = asyncio.Lock()
        self._asks: Asks | None = None
        """Requests of the running episode's agent for tools."""
        self._report = b""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Task[None] | None = None
        self._control, control = socket.socketpair()
        self._lifeline, lifeline = socket.socketpair()
        out, into = os.pipe()
        self._out = open(out, "rb", buffering=0)  # noqa: SIM115, PTH123 - closed by `_close_files`
        os.set_blocking(out, False)
        try:
            self._popen = subprocess.Popen(  # noqa: S603 - what the config names as the interpreter
                [launch.interpreter, WORKER, str(control.fileno()), str(lifeline.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=into,
                stderr=into,
                env=dict(launch.environ),
                pass_fds=(control.fileno(), lifeline.fileno()),
                # Ctrl-C in the terminal must reach the run alone, which then ends its workers.
                start_new_session=True,
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

        Raises `UsageError` if the workflow cannot be loaded; `RunError` if the process ends, takes too long, or `abort`
        is set.
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
        # A worker that has ended already is reported below, with its output.
        with contextlib.suppress(ConnectionError, TimeoutError):
            self._control.sendall(frame(launch.start, launch.payload))
        self._control.setblocking(False)
        self._lifeline.setblocking(False)
        try:
            message = self._first_message(abort)
            answer = None if message is None else read_start(message)
        except ProtocolError as error:
            raise PluginError(f"{launch.where}: the agent's process {error}{self._said()}") from error
        finally:
            self.drain()
        if answer is None:
            self._wait_now()
            raise PluginError(
                f"{launch.where}: {launch.interpreter} {self._how()} before the workflow was ready{self._said()}"
                + ("" if launch.own else "; expected Python 3.8 or newer with all that the workflow imports")
            )
        if answer["op"] == "refused":
            raise read_refusal(answer, launch.where)
        self.name, self.is_async = answer["name"], answer["is_async"]

    def _first_message(self, abort: threading.Event) -> dict[str, Any] | None:
        """Wait for the worker's message about its workflow; return None if it ends before."""
        launch = self._launch
        end = time.monotonic() + launch.limit_s
        # Not `select.select`, which refuses file descriptors from 1024 on: a run may have thousands of connections.
        with selectors.DefaultSelector() as selector:
            for source in (self._control, self._lifeline, self._out):
                selector.register(source, selectors.EVENT_READ)
            while (message := self._frames.next()) is None:
                ready = [key.fileobj for key, _ in selector.select(_LOOK_S)]
                if self._out in ready and not self.drain():
                    selector.unregister(self._out)
                if self._control in ready:
                    piece = self._receive_now()
                    if not piece:
                        return None
                    self._frames.add(piece)
                elif self._lifeline in ready:
                    return None
                if abort.is_set():
                    raise RunError("the run has ended")
                if time.monotonic() > end:
                    raise RunError(
                        f"{launch.where}: the workflow was not ready within {launch.limit_s:g} s in "
                        f"{launch.interpreter}{self._said()}"
                    )
        return message

    def _receive_now(self) -> bytes:
        try:
            return self._control.recv(READ_BYTES)
        except ConnectionError:
            return b""

    def attach(self) -> None:
        """Bind the process to the running event loop; does nothing the second time."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._out.fileno(), self.drain)
            self._ended = self._loop.create_task(self._watch())

    @property
    def alive(self) -> bool:
        """Return whether the process can run another episode, as far as is known."""
        return not self.killed and (self._ended is None or not self._ended.done())

    async def run(self, header: Mapping[str, Any], body: bytes, here: WorkflowContext) -> Any:
        """Run one episode and return the workflow's return value; `here` has the tools that the agent may use.

        Raises `NotBegunError` if the process cannot begin the episode, because it has ended or is unusable;
        `RemoteFailure` if the workflow raises, if the process ends in the middle, or if it sends a message that no
        worker sends; `EpisodeError` as `read_answer` does. Cancelling this call cancels the agent. An agent that does
        not end within `CANCEL_GRACE_S`, or that is not in an `await`, is killed.
        """
        number = secrets.token_hex(16)
        answer = None
        asks = Asks(number, here.tools, here.add_mark or (lambda _: None), self._write)
        try:
            await self._begin_episode(number, header, body)
            self._asks = asks
            answer = await self._read(number, _ANSWERS)
            await self._confirm_end()
            return read_answer(answer)
        except asyncio.CancelledError:
            # A sync workflow blocks the worker's loop and cannot be cancelled: only killing its process ends it.
            if self.killed or answer is not None or not self.is_async or not await self._cancel(number):
                self.kill()
            raise
        except _EndedError:
            await self._end()
            said = f"the agent's process {self._how()}{self._said()}"
            raise RemoteFailure("AgentProcessDied", f"AgentProcessDied: {said}") from None
        except ProtocolError as error:
            self.kill()
            said = f"the agent's process {error}; it was ended{self._said()}"
            raise RemoteFailure("AgentProtocolError", f"AgentProtocolError: {said}") from None
        finally:
            self._asks = None
            await asks.close()
            self.drain()

    async def _begin_episode(self, number: str, header: Mapping[str, Any], body: bytes) -> None:
        """Send an episode and wait until the worker has begun it."""
        try:
            async with asyncio.timeout(_AWAKE_S):
                await self._write({"op": "run", "id": number, **header}, body)
                await self._read(number, ("began",))
        except _EndedError:
            raise NotBegunError("had ended") from None
        except (ProtocolError, TimeoutError) as error:
            # Caused by what an earlier episode left in the process. That record is finished, and this one is not at
            # fault: it gets another process.
            self.kill()
            raise NotBegunError(str(error) or f"did not begin an episode within {_AWAKE_S:g} s") from None
        except asyncio.CancelledError:
            self.kill()
            raise

    async def _confirm_end(self) -> None:
        """Make the worker confirm that it waits for the next episode; any other message before that is forged."""
        number = secrets.token_hex(16)
        try:
            async with asyncio.timeout(_AWAKE_S):
                await self._write({"op": "over", "id": number})
                await self._read(number, ("idle",))
        except _EndedError:
            # The process ended after its answer, which is complete: the episode counts.
            self.kill()
        except TimeoutError:
            raise ProtocolError(f"did not confirm the end of its episode within {_AWAKE_S:g} s") from None

    async def _end(self) -> None:
        """Wait for the end of a worker that has closed its side; the guard's report about it comes a moment later."""
        if self._ended is not None:
            await asyncio.wait({self._ended}, timeout=_REPORT_S)
        self.kill()
        await self.ended()

    async def _cancel(self, number: str) -> bool:
        """Cancel the episode; return whether the worker has ended it in time."""
        with contextlib.suppress(TimeoutError, asyncio.CancelledError, ProtocolError, _EndedError):
            async with asyncio.timeout(_TURN_S):
                await self._write({"op": "cancel", "id": number})
                answer = await self._read(number, ("cancelling", *_ANSWERS))
            async with asyncio.timeout(CANCEL_GRACE_S):
                if answer["op"] == "cancelling":
                    await self._read(number, _ANSWERS)
                await self._confirm_end()
            return True
        return False

    async def _write(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        loop = asyncio.get_running_loop()
        # A worker that has ended is noticed when its answer is read. Under a lock: answers to requests for tools are
        # written at the same time.
        async with self._writing:
            with contextlib.suppress(ConnectionError):
                await loop.sock_sendall(self._control, frame(header, body))

    async def _read(self, number: str, ops: Sequence[str]) -> dict[str, Any]:
        """Return the next message; `ProtocolError` unless it is one of `ops` and answers the request `number`.

        Requests for tools that come before it are begun.
        """
        while True:
            message = await self._next()
            if self._asks is None or message.get("op") != "ask" or message.get("id") != number:
                check(message, ops, number)
                return message
            self._asks.begin(message)

    async def _next(self) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        while (message := self._frames.next()) is None:
            try:
                piece = await loop.sock_recv(self._control, READ_BYTES)
            except ConnectionError:
                piece = b""
            if not piece:
                raise _EndedError
            self._frames.add(piece)
        return message

    def drain(self) -> bool:
        """Collect what the agent has written so far; return whether more may come."""
        piece: bytes | None = b""
        # Reading a closed file raises ValueError.
        with contextlib.suppress(ValueError):
            for _ in range(0, _DRAIN_BYTES, READ_BYTES):
                piece = self._out.read(READ_BYTES)
                if not piece:
                    break
                self.output.add(piece)
            if piece == b"" and self._loop is not None:
                self._loop.remove_reader(self._out.fileno())
        return piece != b""

    def kill(self) -> None:
        """Make the guard kill the worker and everything that it started; does not wait."""
        if self.killed:
            return
        self.killed = True
        with contextlib.suppress(OSError):
            # The guard takes the end of the lifeline for the end of the run.
            self._lifeline.shutdown(socket.SHUT_WR)

    async def stop(self) -> None:
        """Let an idle worker end by itself; kill it if that takes too long."""
        if self.alive and self._ended is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self._write({"op": "stop"})
                    await asyncio.shield(self._ended)
        self.kill()
        await self.ended()

    async def ended(self) -> None:
        """Wait until all processes of the worker have ended, and close its sockets and pipe."""
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
        """Read the guard's report, and wait for the guard to end."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while (piece := await loop.sock_recv(self._lifeline, 4096)) and len(self._report) < _REPORT_BYTES:
                self._report += piece
        await loop.run_in_executor(None, self._popen.wait)

    def end_now(self) -> None:
        """Kill the worker and wait for its end, without an event loop."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout=_GUARD_S)
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait()
        self._close_files()

    def _wait_now(self) -> None:
        """Do what `_end` does, without an event loop."""
        self._lifeline.settimeout(_REPORT_S)
        for _ in range(2):
            with contextlib.suppress(OSError):
                while (piece := self._lifeline.recv(4096)) and len(self._report) < _REPORT_BYTES:
                    self._report += piece
            self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout=_GUARD_S)
        self.drain()

    def _close_files(self) -> None:
        if self._loop is not None and not self._loop.is_closed() and not self._out.closed:
            # Before they are closed: the loop would otherwise watch whatever file gets the same descriptor next.
            for item in (self._control, self._lifeline, self._out):
                self._loop.remove_reader(item.fileno())
        for item in (self._control, self._lifeline, self._out):
            item.close()

    def _how(self) -> str:
        """Return how the process ended, as a verb phrase."""
        return how_it_ended(self._report, self._popen.returncode, memory_mb=self._launch.memory_mb)

    def _said(self) -> str:
        """Return the process's last lines of output for a message; empty if there are none."""
        last = self.output.last_lines()
        return f"; it wrote last: {last}" if last else ""
