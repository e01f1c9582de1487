"""Care for one server of a fleet: bring it to the weights in use before it gets calls, and again after each failure."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import attrs

from agentrl_core.engines.remote.failures import BACKOFF, AwayError, UnprovenError
from agentrl_core.engines.remote.server import UNKNOWN, Condition
from agentrl_core.engines.remote.state import STARTED_LABEL, label_of
from agentrl_core.errors import EngineError

if TYPE_CHECKING:
    from agentrl_core.api.remote import Served
    from agentrl_core.engines.remote.server import RemoteServer
    from agentrl_core.engines.remote.state import EngineState

log = logging.getLogger(__name__)

Prove: TypeAlias = "Callable[[RemoteServer, int], Awaitable[None]]"
"""Proves that a server has the weights of a version; raises `UnprovenError` if it has others."""

_LAST_PARTS_S = 1.0
"""Time that the tokens of requests which a paused server has aborted may take to arrive."""
_LONGEST_STEPS = 8
"""Failures in a row after which the waits of a server that is away no longer grow."""


@attrs.frozen(eq=False)
class Target:
    """Weights that all servers of a fleet should have."""

    version: int
    load: Callable[[RemoteServer], Awaitable[None]] | None
    """Has a paused server load them; None if no server needs to, as nothing is known about the policy's directory."""


class Surroundings(Protocol):
    """Parts of the fleet that its members use."""

    target: Target

    @property
    def model(self) -> str | None:
        """Name of the model that all servers must serve; None before the first has been asked."""
        ...

    @property
    def takes_weights(self) -> bool:
        """Whether the servers can load new weights."""
        ...

    def judge(self, server: RemoteServer, served: Served) -> None:
        """Raise `EngineError` if a server does not serve what the others do."""
        ...

    def changed(self) -> None:
        """Tell waiting calls and publications that a server's condition has changed."""
        ...

    def fail(self, reason: str) -> None:
        """End the engine."""
        ...

    def has_other_up(self, server: RemoteServer) -> bool:
        """Return whether a server besides `server` is not known to be away."""
        ...


class Member:
    """One server of a fleet; everything here runs on the fleet's event loop.

    A server gets calls only while its condition is `READY`. It leaves that condition for a publication (`UPDATING`), or
    when something casts doubt on its weights (`OUT`): a connection that failed, tokens of older weights, or a
    publication that it was too slow for. Then it is asked what it serves, and loads the target's weights unless it
    still has them.
    """

    def __init__(
        self,
        server: RemoteServer,
        fleet: Surroundings,
        state: EngineState,
        model_dir: Path | None,
        *,
        prove: Prove,
    ) -> None:
        self.server, self._prove = server, prove
        self.refused: tuple[int, EngineError] | None = None
        """The last version that the server refused to load, and why."""
        self._fleet, self._state = fleet, state
        self._model_dir = model_dir
        self._attention = asyncio.Event()
        self._complaint = ""
        self._has_returned = False
        """Whether the server was away, or was restarted, since it last got calls."""

    def attend(self) -> None:
        """Have `run` look at the server now."""
        self._attention.set()

    async def run(self) -> None:
        """Bring the server to the target whenever `attend` is called; ends when cancelled."""
        while True:
            await self._attention.wait()
            self._attention.clear()
            try:
                await self._bring()
            except (
                Exception
            ) as error:  # of a package's protocol or publisher: publications and calls would wait for ever
                log.exception("%s: looking after the server failed", self.server.url)
                self._fleet.fail(f"{self.server.url}: {type(error).__name__}: {error}")

    async def _bring(self) -> None:
        """Try until the server has the target's weights, or refuses them during a publication."""
        for attempt in itertools.count():
            target = self._fleet.target
            try:
                await self.step(target)
            except EngineError as error:
                if self.refused is not None and self.refused[1] is error:
                    return
                if isinstance(error, UnprovenError) and error.is_final:
                    self._fleet.fail(str(error))
                    return
                if not self._bears(error):
                    return
                wait_s = BACKOFF.wait_s(min(attempt, _LONGEST_STEPS))
                await self._pause(wait_s)
                continue
            if self._fleet.target is target:
                return

    async def step(self, target: Target, served: Served | None = None) -> None:
        """Bring the server to `target` once; `served` is its self-description, if it has just been asked.

        Raises `AwayError` if the server cannot be reached, and another `EngineError` if it refuses, or serves something
        else than the rest of the fleet.
        """
        server = self.server
        was_out = server.condition is Condition.OUT
        if was_out:
            await self._look(target, served or await server.control.describe(self._fleet.model))
        elif server.version >= target.version:
            return self._set(Condition.READY)
        is_loaded = server.version < target.version
        if is_loaded:
            try:
                await self._load(target, is_paused=self._state.paused and not was_out)
            except AwayError:
                raise
            except EngineError as error:
                # Not a refusal if the fleet has gone on without the server: the weights may be gone from the disk.
                if server.condition is Condition.UPDATING and self._fleet.target is target:
                    await self._keep_old(target, error)
                raise
        return await self._admit(target, is_loaded=is_loaded)

    async def _load(self, target: Target, *, is_paused: bool) -> None:
        assert target.load is not None  # noqa: S101 (without it, no server has older weights)
        if not is_paused:
            await self.hush()
        await target.load(self.server)
        self.server.version, self.server.label = target.version, label_of(target.version)

    async def hush(self) -> None:
        """Pause the server, and wait until none of its calls runs any more; they keep the tokens that have come."""
        quiet = asyncio.wrap_future(self.server.await_quiet(self._state.lock))
        if self._fleet.takes_weights:
            await self.server.control.pause()
            # Aborted requests return their tokens so far. Requests that reached the server after the pause wait there,
            # and are cancelled below.
            await asyncio.wait([quiet], timeout=_LAST_PARTS_S)
        with self._state.lock:
            rest = tuple(self.server.running)
        for call in rest:
            call.wake()
        await quiet

    async def _look(self, target: Target, served: Served) -> None:
        """Note which weights a server has that was out; none that it must load again to be trusted."""
        server = self.server
        self._fleet.judge(server, served)
        server.served = served
        before, server.version = server.version, UNKNOWN
        if not self._fleet.takes_weights or target.load is None:
            server.version, server.label = target.version, served.label
        elif target.version == 0 and _is_initial(served, self._model_dir):
            server.version, server.label = 0, served.label
        elif before != UNKNOWN and served.label is not None:
            # The label of a server that has just joined may be that of another run's weights.
            if served.label == server.label:
                server.version = before
            elif (version := self._state.later_version(served.label)) is not None:
                server.version, server.label = version, served.label
        if before != UNKNOWN and server.version == UNKNOWN:
            self._has_returned = True
            log.warning("%s: the server has lost weights of version %d; it was restarted", server.url, before)

    async def _keep_old(self, target: Target, error: EngineError) -> None:
        """Let a server that refused new weights go on with its old ones; the publication fails."""
        self.refused = (target.version, error)
        try:
            if not self._state.paused:
                await self.server.control.resume()
        except EngineError as failure:
            log.warning("%s: not resumed after it refused new weights: %s", self.server.url, failure)
        self._set(Condition.READY)

    async def _admit(self, target: Target, *, is_loaded: bool) -> None:
        """Let the server sample, and give it calls once its weights are proven, unless there are newer ones by now."""
        server = self.server
        if self._fleet.takes_weights:
            # Even while the engine is paused, because a paused server answers nothing, so it could not be proven.
            await server.control.resume()
            try:
                await self._prove(server, server.version)
            except UnprovenError as error:
                # It was restarted, or has lost its weights in another way. It loads them again; one that has just done
                # so would only go on like this.
                error.is_final = is_loaded
                server.version = UNKNOWN
                raise
            if self._state.paused:
                await server.control.pause()
        self._state.name(server.label, server.version)
        if self._fleet.target is not target:
            return
        if self._has_returned:
            log.info("%s: the server is back, with weights of version %d", server.url, target.version)
            server.absence.end()
        # A server that was there all the time rests for a while after a failure (see `Absence.rested`).
        self._complaint, self._has_returned = "", False
        self._set(Condition.READY)

    def _bears(self, error: EngineError) -> bool:
        """Note a failure; return False if it ends the engine, because no server has been up for too long."""
        server = self.server
        self._has_returned = self._has_returned or isinstance(error, AwayError)
        if not isinstance(error, AwayError) and str(error) != self._complaint:
            log.warning("%s; the server gets no calls, and is asked again", error)
            self._complaint = str(error)
        self._set(Condition.OUT)
        try:
            server.absence.begin(str(error), others_are_up=self._fleet.has_other_up(server))
        except EngineError as final:
            self._fleet.fail(str(final))
            return False
        return True

    async def _pause(self, wait_s: float) -> None:
        """Wait, but no longer than until `attend` is called."""
        try:
            async with asyncio.timeout(wait_s):
                await self._attention.wait()
        except TimeoutError:
            return
        self._attention.clear()

    def _set(self, condition: Condition) -> None:
        with self._state.lock:
            self.server.condition = condition
        self._fleet.changed()


def _is_initial(served: Served, model_dir: Path | None) -> bool:
    """Return whether a server has the weights of the policy's directory, with which it was started."""
    return served.label in {None, STARTED_LABEL} and served.model_path == str(model_dir)
