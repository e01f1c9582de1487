"""One worker process as the run sees it: start, episodes, output, end.

Nothing that it says is trusted, as the agent's code runs in there. Each request has a random id, and an episode counts
once the worker has confirmed that it is over: what the agent writes in between fails that episode, what it writes
later costs the process alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from agentrl_core.errors import AgentRLError, ConfigError, DataError, PluginError, RunError
from agentrl_core.rollout.failures import RemoteFailure, tell
from agentrl_core.rollout.subproc.answers import READ_BYTES, Frames, ProtocolError, check, read_answer, read_start
from agentrl_core.rollout.subproc.launch import WORKER
from agentrl_core.rollout.subproc.output import Output
from agentrl_core.rollout.subproc.worker import frame

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
_AWAKE_S = 30.0
"""Longest that a worker may take to begin an episode, and to confirm the end of one."""
_REPORT_BYTES = 4096
_DRAIN_BYTES = 2**20
"""Output taken at a time, as much as a pipe can hold: an agent that never stops writing must not hold up the run."""
_KINDS: Mapping[str, type[AgentRLError]] = {
    item.__name__: item for item in (ConfigError, DataError, PluginError, RunError)
}


_ANSWERS = ("done", "raised")


class NotBegunError(Exception):
    """A process cannot run the next episode; the message goes on from `the agent's process`."""


class _EndedError(Exception):
    """The worker has closed its side."""


class WorkerProcess:
    """A worker that has the workflow ready; made by `start`, then used on one event loop."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self.output = Output()
        self.is_async = True
        self.name = ""
        self.killed = False
        self._frames = Frames()
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
            raise self._refusal(answer)
        self.name, self.is_async = answer["name"], answer["is_async"]

    def _first_message(self, abort: threading.Event) -> dict[str, Any] | None:
        """Wait for what the worker says of its workflow; None where it ends before."""
        launch = self._launch
        end = time.monotonic() + launch.limit_s
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

    async def run(self, header: Mapping[str, Any], body: bytes) -> Any:
        """Run one episode and return what the workflow returns.

        Raises `NotBegunError` where the process cannot begin it, as it has ended or is of no use any more;
        `RemoteFailure` for what the workflow raises, for the end of the process in the middle, and for what no worker
        says; `EpisodeError` as `read_answer`. Cancelling this cancels the agent; one that goes on for
        `CANCEL_GRACE_S`, or is not in an await, is killed.
        """
        number = secrets.token_hex(16)
        answer = None
        try:
            await self._begin_episode(number, header, body)
            answer = await self._read(number, _ANSWERS)
            await self._confirm_end()
            return read_answer(answer)
        except asyncio.CancelledError:
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
            self.drain()

    async def _begin_episode(self, number: str, header: Mapping[str, Any], body: bytes) -> None:
        """Send an episode and wait until the worker has taken it up."""
        try:
            async with asyncio.timeout(_AWAKE_S):
                await self._write({"op": "run", "id": number, **header}, body)
                await self._read(number, ("began",))
        except _EndedError:
            raise NotBegunError("had ended") from None
        except (ProtocolError, TimeoutError) as error:  # of an earlier episode, whose record is no longer concerned
            self.kill()
            raise NotBegunError(str(error) or f"did not begin an episode within {_AWAKE_S:g} s") from None
        except asyncio.CancelledError:
            self.kill()
            raise

    async def _confirm_end(self) -> None:
        """Have the worker say that it waits for the next episode: what stands before that is not its own."""
        number = secrets.token_hex(16)
        try:
            async with asyncio.timeout(_AWAKE_S):
                await self._write({"op": "over", "id": number})
                await self._read(number, ("idle",))
        except _EndedError:  # after its answer, which is complete
            self.kill()
        except TimeoutError:
            raise ProtocolError(f"did not confirm the end of its episode within {_AWAKE_S:g} s") from None

    async def _end(self) -> None:
        """Wait for the end of a worker that has closed its side: how it was is known a moment later."""
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
        with contextlib.suppress(ConnectionError):  # it has ended, as reading will tell
            await loop.sock_sendall(self._control, frame(header, body))

    async def _read(self, number: str, ops: Sequence[str]) -> dict[str, Any]:
        """Return the next message, which is to be one of these and to answer that request."""
        loop = asyncio.get_running_loop()
        while (message := self._frames.next()) is None:
            try:
                piece = await loop.sock_recv(self._control, READ_BYTES)
            except ConnectionError:
                piece = b""
            if not piece:
                raise _EndedError
            self._frames.add(piece)
        check(message, ops, number)
        return message

    def drain(self) -> bool:
        """Take what the agent has written so far; return whether there may be more."""
        piece: bytes | None = b""
        with contextlib.suppress(ValueError):  # closed
            for _ in range(0, _DRAIN_BYTES, READ_BYTES):
                piece = self._out.read(READ_BYTES)
                if not piece:
                    break
                self.output.add(piece)
            if piece == b"" and self._loop is not None:
                self._loop.remove_reader(self._out.fileno())
        return piece != b""

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
            while (piece := await loop.sock_recv(self._lifeline, 4096)) and len(self._report) < _REPORT_BYTES:
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
                while (piece := self._lifeline.recv(4096)) and len(self._report) < _REPORT_BYTES:
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
