"""Servers of one engine as a changing whole: they join, leave, restart and lag; publications go to all of them.

Its own event loop, on a thread, looks after the servers, because the loops of a run end before the engine does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from agentrl_core.engines.remote.failures import AwayError, LostReplyError
from agentrl_core.engines.remote.fleet_thread import FleetThread
from agentrl_core.engines.remote.member import Member, Prove, Target
from agentrl_core.engines.remote.server import Condition
from agentrl_core.engines.remote.state import label_of
from agentrl_core.errors import EngineError

if TYPE_CHECKING:
    from agentrl_core.api.remote import Served
    from agentrl_core.engines.remote.addresses import Addresses
    from agentrl_core.engines.remote.pool import ServerPool
    from agentrl_core.engines.remote.server import RemoteServer
    from agentrl_core.engines.remote.state import EngineState

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_S = 2.0
"""Time between two looks at a list of servers that may change."""


@attrs.frozen
class Stall:
    """Result of a publication."""

    stall_s: float
    """Time in which no server sampled."""
    seconds: float
    """Time until all servers had the weights, or were given up as too slow."""


class Fleet:
    """Looks after the servers of an engine from `start` to `close`, on its own thread.

    `connect` makes the server of an address. `straggler_s`: how long a publication waits for the other servers once one
    has the new weights. `on_change` is called on the fleet's thread when calls that wait may find a server now.
    `prove(server, version)` proves that a server has the weights of a version, before it gets calls.
    """

    def __init__(
        self,
        pool: ServerPool,
        state: EngineState,
        addresses: Addresses,
        connect: Callable[[str], RemoteServer],
        *,
        straggler_s: float,
        on_change: Callable[[], None],
        prove: Prove,
    ) -> None:
        self._pool, self._state, self._addresses, self._connect = pool, state, addresses, connect
        self._straggler_s, self._on_change, self._prove = straggler_s, on_change, prove
        self.target = Target(0, None)
        self._model: str | None = None
        self._model_dir: Path | None = None
        self._members: dict[RemoteServer, Member] = {}
        self._tasks: dict[Member | None, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._thread: FleetThread | None = None
        self._event = asyncio.Event()

    @property
    def model(self) -> str | None:
        """Name of the model that all servers must serve."""
        return self._pool.model or self._model

    @property
    def takes_weights(self) -> bool:
        """Whether the servers can load new weights."""
        return self._pool.takes_weights

    # Called from other threads.

    def start(self, model: str | None, model_dir: Path | None) -> None:
        """Ask the servers what they serve; have those load the policy's weights that have others. Blocks."""
        self._model, self._model_dir = model, model_dir
        if model_dir is not None:
            self.target = Target(0, lambda server: server.control.load(model_dir, label_of(0)))
        self._thread = FleetThread()
        self._thread.submit(self._begin()).result()

    async def publish(self, version: int, load: Callable[[RemoteServer], Coroutine[Any, Any, None]]) -> Stall:
        """Have all servers load new weights; each samples again as soon as it has them.

        `load` is called for each paused server, on the fleet's event loop, and again for servers that join or return
        later. Returns once all servers have the weights, except those that are away or too slow: they get no calls
        until they have them. Raises `EngineError` if a server refuses.
        """
        return await self._run(self._publish(Target(version, load)))

    async def prove(self) -> None:
        """Prove that all servers that are in service have the target's weights; raises `EngineError`."""
        await self._run(self._prove_all())

    async def pause(self) -> None:
        """Pause all servers that are in service; raises `EngineError` if one refuses, and then none is paused."""
        await self._run(self._pause_all())

    async def resume(self) -> None:
        """Let all servers sample again; one that cannot be reached is looked after."""
        await self._run(self._resume_all())

    def doubt(self, server: RemoteServer) -> None:
        """Give a server no calls until it has been asked what it serves; call it while holding the state's lock."""
        if server.condition is Condition.READY:
            server.condition = Condition.OUT
            if self._thread is not None:
                self._thread.call(self._attend, server)

    def close(self) -> None:
        """End the thread and all connections; idempotent."""
        if self._thread is not None:
            self._thread.call(self.changed)
            self._thread.close()
        for server in self._pool.servers:
            server.close()

    # The rest runs on the fleet's thread.

    def judge(self, server: RemoteServer, served: Served) -> None:
        """Raise `EngineError` if a server does not serve what the others do."""
        self._pool.judge(server.url, served)

    def has_other_up(self, server: RemoteServer) -> bool:
        """Return whether a server besides `server` is not known to be away."""
        return self._pool.has_other_up(server)

    def changed(self) -> None:
        """Tell waiting calls and publications that a server's condition has changed."""
        self._event.set()
        self._on_change()

    def fail(self, reason: str) -> None:
        """End the engine: all calls fail with `reason`."""
        with self._state.lock:
            self._state.ended = self._state.ended or reason
        self.changed()

    async def _begin(self) -> None:
        members = [self._add(self._connected(url)) for url in await self._addresses.read()]
        # One after the other: the first server that is wrong is named, and no other has been touched.
        found: dict[Member, Served] = {}
        for member in members:
            try:
                found[member] = await member.server.control.describe(self._model)
            except AwayError as error:
                if not self._addresses.may_change:
                    raise
                log.warning("%s; it joins when it answers", error)
        if not found:
            raise EngineError(f"{self._addresses.name}: none of {len(members)} servers answers; start at least one")
        self._pool.note({member.server.url: served for member, served in found.items()})
        for member, served in found.items():
            await member.step(self.target, served)
        for member in members:
            self._look_after(member)
        if self._addresses.may_change:
            self._tasks[None] = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        """Follow the list of servers."""
        complaint = ""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self._follow(await self._addresses.read())
            except EngineError as error:
                # The servers themselves are still there.
                if str(error) != complaint:
                    log.warning("%s; the servers stay as they are", error)
                complaint = str(error)
            else:
                complaint = ""

    def _follow(self, urls: Sequence[str]) -> None:
        """Take in the servers that are new in the list, and take out those that have left it."""
        here: Mapping[str, RemoteServer] = {server.url: server for server in self._members}
        # All of them first: a wrong address leaves the list without effect.
        new = {url: self._connected(url) for url in urls if url not in here}
        for url, server in new.items():
            log.info("%s: a server joins", url)
            self._look_after(self._add(server))
        for url, server in here.items():
            if url not in urls:
                log.info("%s: the server is no longer listed, and gets no new calls", url)
                self._remove(server)

    def _connected(self, url: str) -> RemoteServer:
        try:
            return self._connect(url)
        except ValueError as error:
            raise EngineError(f"{self._addresses.name}: {error}") from error

    def _add(self, server: RemoteServer) -> Member:
        member = self._members[server] = Member(server, self, self._state, self._model_dir, prove=self._prove)
        with self._state.lock:
            self._pool.add(server)
        return member

    def _look_after(self, member: Member) -> None:
        self._tasks[member] = asyncio.create_task(member.run())
        if member.server.condition is Condition.OUT:
            member.attend()

    def _remove(self, server: RemoteServer) -> None:
        """Take a server out; its calls end where they are."""
        member = self._members.pop(server)
        if (task := self._tasks.pop(member, None)) is not None:
            task.cancel()
        with self._state.lock:
            server.condition = Condition.OUT
            self._pool.remove(server)

        async def leave() -> None:
            await asyncio.wrap_future(server.await_quiet(self._state.lock))
            server.close()

        leaving = asyncio.create_task(leave())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        self.changed()

    def _attend(self, server: RemoteServer) -> None:
        if (member := self._members.get(server)) is not None:
            member.attend()
        self.changed()

    async def _publish(self, target: Target) -> Stall:
        begun = time.monotonic()
        self.target = target
        with self._state.lock:
            chosen = [server for server in self._members if server.condition is not Condition.OUT]
            for server in chosen:
                server.condition = Condition.UPDATING
        for member in self._members.values():
            member.refused = None
            member.attend()
        first: float | None = None
        while True:
            self._event.clear()
            self._state.check_alive()
            updating = [server for server in chosen if server.condition is Condition.UPDATING]
            current = [server for server in self._members if server.version >= target.version]
            ready = [server for server in current if server.condition is Condition.READY]
            if ready and first is None:
                first = time.monotonic()
                with self._state.lock:
                    self._state.version = max(self._state.version, target.version)
            refusals = [member.refused[1] for member in self._members.values() if member.refused]
            if not updating and (ready or refusals):
                break
            left_s = None if first is None else first + self._straggler_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                self._leave_behind(updating, target.version)
                break
            await self._next_event(left_s)
        if refusals:
            raise refusals[0]
        now = time.monotonic()
        return Stall(stall_s=(first or now) - begun, seconds=now - begun)

    async def _next_event(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return

    def _leave_behind(self, slow: list[RemoteServer], version: int) -> None:
        """Go on without servers that are slow to load; their calls move to the others."""
        for server in slow:
            log.warning(
                "%s: has not loaded version %d within engine.straggler_s = %g after the first server; the others go on "
                "without it, and it gets calls again when it has the weights",
                server.url,
                version,
                self._straggler_s,
            )
            with self._state.lock:
                server.condition = Condition.OUT
        self.changed()

    async def _prove_all(self) -> None:
        servers = [server for server in self._members if server.condition is Condition.READY]
        results = await asyncio.gather(
            *[self._prove(server, self.target.version) for server in servers], return_exceptions=True
        )
        faults = [result for result in results if isinstance(result, BaseException)]
        if all(isinstance(fault, LostReplyError) for fault in faults) and len(faults) < len(servers):
            # Servers that do not answer are asked again, while the others sample.
            for server, result in zip(servers, results, strict=True):
                if isinstance(result, LostReplyError):
                    log.warning("%s; the server gets no calls until it is proven", result)
                    with self._state.lock:
                        self.doubt(server)
        elif faults:
            self.fail("; ".join(map(str, faults)))
            self._state.check_alive()

    async def _pause_all(self) -> None:
        members = [member for server, member in self._members.items() if server.condition is not Condition.OUT]
        results = await asyncio.gather(*[member.hush() for member in members], return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        for member, result in zip(members, results, strict=True):
            if isinstance(result, AwayError):
                with self._state.lock:
                    self.doubt(member.server)
        refusals = [failure for failure in failures if not isinstance(failure, AwayError)]
        if refusals:
            # Those that did pause would hold every call until its timeout.
            await self._resume_all()
            raise refusals[0]

    async def _resume_all(self) -> None:
        if not self.takes_weights:
            return
        for server in [server for server in self._members if server.condition is not Condition.OUT]:
            try:
                await server.control.resume()
            except EngineError as error:
                log.warning("%s: not resumed: %s", server.url, error)
                with self._state.lock:
                    self.doubt(server)

    async def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._thread is None or self._thread.has_ended:
            coroutine.close()
            raise EngineError(self._state.ended or "the engine was closed")
        return await asyncio.wrap_future(self._thread.submit(coroutine))
