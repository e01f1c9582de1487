"""Requests of a remote engine that run: each is placed, called and repeated until its output is complete."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentrl_core.engines.remote.failures import BACKOFF, RETRIES, LostReplyError
from agentrl_core.engines.remote.server import Condition
from agentrl_core.errors import EngineError
from agentrl_core.types import FinishReason

if TYPE_CHECKING:
    from agentrl_core.engines.remote.calls import RemoteCall
    from agentrl_core.engines.remote.pool import ServerPool
    from agentrl_core.engines.remote.server import RemoteServer
    from agentrl_core.engines.remote.state import EngineState

log = logging.getLogger(__name__)


class RunningCalls:
    """Runs calls, each in its consumer's event loop. `doubt` takes a server out that may have been restarted."""

    def __init__(self, state: EngineState, pool: ServerPool, doubt: Callable[[RemoteServer], None]) -> None:
        self._state, self._pool, self._doubt = state, pool, doubt
        self._calls: dict[str, RemoteCall] = {}
        """By request id; guarded by the state's lock, because several event loops change it."""

    def start(self, call: RemoteCall) -> None:
        """Run a call as a task of this event loop; raises `EngineError` if its request runs already."""
        request_id = call.request.request_id
        with self._state.lock:
            self._state.check_alive()
            if request_id in self._calls:
                raise EngineError(f"request {request_id} is already running; ids are unique among running ones")
            self._calls[request_id] = call
        call.task = asyncio.create_task(self._run(call))

    def abort(self, request_id: str) -> None:
        """End a request with finish reason `abort`; unknown ids are ignored."""
        with self._state.lock:
            call = self._calls.get(request_id)
            if call is None:
                return
            call.aborted = True
        call.wake()

    def wake_all(self) -> None:
        """Have all calls notice that the engine has ended."""
        with self._state.lock:
            calls = list(self._calls.values())
        for call in calls:
            call.wake()

    def wake_waiting(self) -> None:
        """Have calls that wait for a server look again."""
        with self._state.lock:
            waiting = [call for call in self._calls.values() if call.server is None or call not in call.server.running]
        for call in waiting:
            call.wake()

    async def _run(self, call: RemoteCall) -> None:
        """Call the server until the output is complete; the consumer reads from the mailbox."""
        try:
            while call.reason is None:
                server = await self._enter(call)
                if server is not None:
                    failure: LostReplyError | None = None
                    with call:
                        failure = await self._try(call, server)
                    self._leave(call, server)
                    if failure is not None:
                        await self._retry(call, server, failure)
            self.forget(call)
            # The call may have tokens of a version that the slowest server has yet to load.
            call.mailbox.put(call.take_chunks(max([self._state.version, *call.versions[-1:]])))
        except EngineError as error:
            call.mailbox.put(error)
        except Exception as error:  # must reach the consumer, which would wait forever otherwise
            log.exception("request %s failed", call.request.request_id)
            unforeseen = EngineError(f"request {call.request.request_id}: {type(error).__name__}: {error}")
            unforeseen.__cause__ = error
            call.mailbox.put(unforeseen)
        finally:
            self.forget(call)

    async def _enter(self, call: RemoteCall) -> RemoteServer | None:
        """Wait for a server that samples; return None if the request was aborted."""
        while True:
            with self._state.lock:
                self._state.check_alive()
                if call.aborted:
                    call.reason = FinishReason.ABORT
                    return None
                if not self._state.paused:
                    server = self._pool.place(call)
                    if server is not None and server.condition is Condition.READY:
                        server.running.add(call)
                        return server
            await call.wait()

    async def _try(self, call: RemoteCall, server: RemoteServer) -> LostReplyError | None:
        """Call the server once; return the failure if the call may be repeated."""
        try:
            await server.sample(call, server.version)
        except LostReplyError as failure:
            if failure.doubtful:
                with self._state.lock:
                    self._doubt(server)
            call.end_where_due()  # perhaps only the finish reason after the last token was lost
            return None if call.reason is not None else failure
        server.absence.end()
        call.failures, call.outlived_absence = 0, False
        return None

    async def _retry(self, call: RemoteCall, server: RemoteServer, failure: LostReplyError) -> None:
        """Wait before a call is repeated; raise if repeating is pointless for this call, or for all calls."""
        if failure.answered:
            server.absence.end()
        else:
            if failure.outdated and math.isinf(server.absence.since):
                log.warning("%s", failure)
            server.absence.begin(str(failure), others_are_up=self._pool.has_other_up(server))
        wait_s = BACKOFF.wait_s(call.failures, failure.retry_after_s)
        call.failures += 1
        call.outlived_absence = call.outlived_absence or failure.unreached or failure.outdated
        if call.failures > RETRIES or failure.waited or wait_s > BACKOFF.longest_s:
            # Many failures in a row: find out whether they are about this call, or the server is away for all of them.
            is_up = failure.answered or (not failure.outdated and await server.control.is_up())
            if is_up:
                server.absence.end()
                if not call.outlived_absence:
                    raise failure
                call.failures, call.outlived_absence = 0, False
            else:
                call.outlived_absence = True
        # A server that is in doubt gets no calls before it has been asked, and another one may be free at once.
        if not failure.doubtful:
            await call.wait(min(wait_s, BACKOFF.longest_s))

    def _leave(self, call: RemoteCall, server: RemoteServer) -> None:
        """Record that the server no longer samples for this request."""
        with self._state.lock:
            server.running.discard(call)
            server.note_quiet()

    def forget(self, call: RemoteCall) -> None:
        """Note that a request has ended, or that nobody waits for it any more."""
        with self._state.lock:
            if self._calls.get(call.request.request_id) is call:
                del self._calls[call.request.request_id]
            if call.server is not None:
                call.server.running.discard(call)
                call.server.note_quiet()
                self._pool.release(call)
