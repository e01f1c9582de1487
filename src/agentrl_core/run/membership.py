"""Take part in a run as one or more members: join, beat, watch the others, and learn what people want of the run.

A thread with an event loop of its own does all of it, so that an agent that blocks the agents' loop ends no lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import attrs

from agentrl_core.errors import LostError, MemberError, RunError, StoreError

if TYPE_CHECKING:
    from types import TracebackType

    from agentrl_core.api.members import Member, Role
    from agentrl_core.api.stores import RunControl, Store

T = TypeVar("T")

logger = logging.getLogger(__name__)

_BEATS_PER_LEASE = 4
_LONGEST_TICK_S = 2.0
"""Seconds within which a pause, a stop or a new limit is noticed."""

_ENDED_PROCESSES_S = 0.5
"""Seconds between two looks at the processes of this machine, which cost no call of the store."""

_END_S = 5.0
"""Longest wait for the thread at the end."""

_own: set[str] = set()
"""Ids of the live members of this process."""


class Membership:
    """Members of this process in one run, from `join` to `leave`; a context manager that leaves at the end.

    `report(member)` is what the others read about a member, sent with each heartbeat and called on the thread of the
    membership. `notice(message)` is called on that thread too, when another member is lost.

    After `rollout.lease_s` (`Member.lease_s`) without a heartbeat that the store has accepted, or as soon as the store
    refuses one, this process has lost its claims: `on_lost` callbacks get the error, and `check` raises it.
    """

    def __init__(
        self,
        store: Store,
        members: Iterable[Member],
        *,
        report: Callable[[Member], Mapping[str, Any]] = lambda _: {},
        notice: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.members = tuple(members)
        self._store, self._report, self._notice, self._clock = store, report, notice, clock
        (self._run_id,) = {member.run_id for member in self.members}
        self._lease_s = min(member.lease_s for member in self.members)
        self._beat_s = self._lease_s / _BEATS_PER_LEASE
        self._watch = Watch(store, self._run_id, clock=clock)
        self._lock = threading.Lock()
        self._more: list[Callable[[], Mapping[str, Any]]] = []
        self._on_lost: list[Callable[[RunError], None]] = []
        self._on_control: list[Callable[[RunControl], None]] = []
        self._control: RunControl | None = None
        self._error: RunError | None = None
        self._beaten_at = clock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping = asyncio.Event()
        self._serving: Sequence[asyncio.Task[None]] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def id_of(self, role: Role) -> str:
        """Return the id of this process's member in a role; raise `KeyError` if it has none."""
        return {member.role: member.id for member in self.members}[role]

    def join(self) -> None:
        """Join the run, and begin to beat; blocks.

        If another trainer is in the run, waits for its lease, and takes its place if it does not beat meanwhile.
        Raises `MemberError`, with the other's name, if it does.
        """
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="membership", daemon=True)
        self._thread.start()
        try:
            self._call(self._join())
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """End the members in the store, and the thread; what they had claimed is free. Does nothing the second time."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        try:
            self._call(self._leave(), limit_s=self._lease_s)
        except (RunError, TimeoutError) as error:
            # The others declare the members lost; the end of this process must not wait for the store.
            logger.warning("could not leave the run: %s", error or "the store did not answer")
        _own.difference_update(member.id for member in self.members)
        self._loop = self._thread = None
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_END_S)
        if not thread.is_alive():
            loop.close()

    def tell(self) -> None:
        """Send a heartbeat now, with a new report, because others wait for what it says; blocks."""
        with contextlib.suppress(StoreError, TimeoutError):  # `_serve` tries again, and knows when the lease is over
            self._call(self._beat(), limit_s=self._lease_s)

    def check(self) -> None:
        """Raise `LostError` if this process is not a member any more.

        Blocks after a pause of the whole process that was longer than the lease, until the store has said whether the
        members are still live.
        """
        if self._error is None and self._clock() - self._beaten_at > self._lease_s:
            with contextlib.suppress(RunError, TimeoutError):
                self._call(self._beat(), limit_s=self._lease_s)
        if self._error is not None:
            raise self._error

    def confirm(self) -> None:
        """Raise `LostError` unless the store finds the members live now; blocks."""
        if self._error is None:
            self._call(self._beat())
        self.check()

    def report_also(self, more: Callable[[], Mapping[str, Any]]) -> None:
        """Add what `more` returns to the reports of all members; it is called on the thread of the membership."""
        self._more.append(more)

    def on_lost(self, call: Callable[[RunError], None]) -> None:
        """Call back, once, with the error that ended the membership; at once if that is over."""
        with self._lock:
            self._on_lost.append(call)
            error = self._error
        if error is not None:
            call(error)

    def on_control(self, call: Callable[[RunControl], None]) -> None:
        """Call back with what people want of the run: now, if it is known, and after each change."""
        with self._lock:
            self._on_control.append(call)
            control = self._control
        if control is not None:
            call(control)

    def _call(self, work: Coroutine[Any, Any, T], *, limit_s: float | None = None) -> T:
        if self._loop is None:
            work.close()
            raise RunError("this process is no member of the run: it has not joined, or has left")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(limit_s)
        except BaseException:
            future.cancel()
            raise

    async def _join(self) -> None:
        for member in self.members:
            await self._enter(member)
            _own.add(member.id)
            if member.role == "train":
                # Before the control is read: the run goes on from now on, whatever stopped or paused it before.
                await self._store.set_control(self._run_id, wanted="run")
        self._beaten_at = self._clock()
        self._serving = [asyncio.create_task(self._serve()), asyncio.create_task(self._bury())]

    async def _enter(self, member: Member) -> None:
        """Join as one member; as a trainer, in the place of one that has ended or does not beat any more."""
        watch, tick_s = Watch(self._store, self._run_id, clock=self._clock), self._beat_s
        while True:
            try:
                return await self._store.join(member)
            except MemberError:
                rivals = [item for item in await self._store.members(self._run_id, live=True) if item.role == "train"]
                if member.role != "train" or any(watch.has_beaten(rival) for rival in rivals):
                    raise
                new = [rival for rival in rivals if not watch.knows(rival)]
            if await watch.look(tick_s):
                continue
            for rival in new:
                self._notice(f"waiting up to {rival.lease_s:g} s to see whether {rival.name} still lives")
            await asyncio.sleep(tick_s)

    async def _leave(self) -> None:
        self._stopping.set()
        if self._serving:
            await asyncio.wait(self._serving)
        for member in self.members:
            if member.id in _own:
                await self._store.leave(member.id)

    async def _serve(self) -> None:
        """Read the run's control in each tick; beat, and watch the others, four times in each lease."""
        tick_s, next_beat = min(self._beat_s, _LONGEST_TICK_S), self._clock()
        while not self._stopping.is_set() and self._error is None:
            try:
                # A store that hangs must not hide that the lease is over.
                async with asyncio.timeout(self._lease_s):
                    await self._obey()
                    if self._clock() >= next_beat:
                        next_beat = self._clock() + self._beat_s
                        await self._beat()
                        self._tell_of(await self._watch.look(self._beat_s, but=_own))
            except (StoreError, TimeoutError) as error:
                reason = str(error) or "it did not answer in time"  # an exception without text is true all the same
                logger.warning("no heartbeat reached the store: %s", reason)
                next_beat = self._clock()
                if self._clock() - self._beaten_at > self._lease_s:
                    self._lose(f"no heartbeat reached the store for {self._lease_s:g} s: {reason}")
            except Exception as error:
                logger.exception("the heartbeats stopped")
                self._lose(f"the heartbeats stopped: {type(error).__name__}: {error}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), tick_s)

    async def _bury(self) -> None:
        """Declare members lost whose process on this machine has ended, without waiting for their lease."""
        while not self._stopping.is_set() and self._error is None:
            if self._watch.sees_ended:
                with contextlib.suppress(StoreError, TimeoutError):  # `_serve` tells of a store that is away
                    async with asyncio.timeout(self._lease_s):
                        self._tell_of(await self._watch.bury())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _ENDED_PROCESSES_S)

    def _tell_of(self, lost: Iterable[Member]) -> None:
        for member in lost:
            self._notice(f"{member.name} is lost: {_why_lost(member)}; others take over")

    async def _beat(self) -> None:
        for member in self.members:
            report = dict(self._report(member))
            for more in tuple(self._more):
                report |= more()
            if not await self._store.beat(member.id, report):
                self._lose(
                    f"{member.name} was declared lost, because its heartbeats stopped for rollout.lease_s = "
                    f"{member.lease_s:g} s, and others have taken over its work; start it again, with a longer lease "
                    "if the machine is often busy for that long"
                )
                return
        self._beaten_at = self._clock()

    async def _obey(self) -> None:
        control = await self._store.control(self._run_id)
        with self._lock:
            known, self._control = self._control, control
            calls = tuple(self._on_control)
        if known is None or _by_people(control) != _by_people(known):
            for call in calls:
                call(control)

    def _lose(self, message: str) -> None:
        with self._lock:
            if self._error is not None:
                return
            self._error = error = LostError(message)
            calls = tuple(self._on_lost)
        logger.error("%s", message)
        for call in calls:
            call(error)


def _by_people(control: RunControl) -> tuple[object, ...]:
    """Return what people want; the other fields are the trainer's, and change with each step."""
    return control.wanted, control.limits, control.cancel


@attrs.define
class _Seen:
    """Heartbeats of another member, as they were seen last."""

    beats: int
    still_s: float = 0.0
    """Seconds for which this process has been watching, and has seen no further heartbeat."""
    beaten: bool = False


class Watch:
    """Watch over the members of a run; declares those lost whose heartbeats stay the same for their lease.

    Only the time between two looks counts, and not more of it than planned: a watcher that was suspended itself has
    not seen that the others were silent. A member of this machine whose process has ended is declared lost at once.
    """

    def __init__(self, store: Store, run_id: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._run_id, self._clock = store, run_id, clock
        self._seen: dict[str, _Seen] = {}
        self._live: Sequence[Member] = ()
        self._looked_at: float | None = None

    def knows(self, member: Member) -> bool:
        """Return whether a member was there at an earlier look."""
        return member.id in self._seen

    def has_beaten(self, member: Member) -> bool:
        """Return whether a member's heart has beaten since the first look at it."""
        seen = self._seen.get(member.id)
        return seen is not None and (seen.beaten or member.beats != seen.beats)

    @property
    def sees_ended(self) -> bool:
        """Whether the process of a member that was live at the last look has ended; asks this machine alone."""
        return any(member.has_ended for member in self._live)

    async def bury(self) -> list[Member]:
        """Declare those lost whose process has ended, and return those that this call has declared lost."""
        ended = [member for member in self._live if member.has_ended]
        names = {member.id for member in ended}
        # With their last heartbeats, which may have come after the last look.
        last = [member for member in await self._store.members(self._run_id, live=True) if member.id in names]
        lost = [member for member in last if await self._store.declare_lost(member.id, beats=member.beats)]
        self._live = [member for member in self._live if member.id not in names]
        for member in lost:
            logger.warning("%s is lost: its process has ended", member.name)
        return lost

    async def look(self, every_s: float, *, but: Iterable[str] = ()) -> list[Member]:
        """Look at all members except `but`, and return those that this call has declared lost.

        Looks are planned to be `every_s` apart.
        """
        now = self._clock()
        passed_s = 0.0 if self._looked_at is None else min(now - self._looked_at, 2 * every_s)
        self._looked_at = now
        self._live = [member for member in await self._store.members(self._run_id, live=True) if member.id not in but]
        lost = await self.bury() if self.sees_ended else []
        self._seen = {member.id: self._seen[member.id] for member in self._live if member.id in self._seen}
        for member in self._live:
            seen = self._seen.get(member.id)
            if seen is None:
                self._seen[member.id] = _Seen(member.beats)
                continue
            if seen.beats != member.beats:
                seen.beats, seen.still_s, seen.beaten = member.beats, 0.0, True
                continue
            seen.still_s += passed_s
            if seen.still_s >= member.lease_s and await self._store.declare_lost(member.id, beats=member.beats):
                logger.warning("%s is lost: no heartbeat for %g s", member.name, member.lease_s)
                lost.append(member)
        return lost


async def declare_gone(store: Store, run_id: str) -> list[Member]:
    """Declare those members of a run lost at once whose process on this machine is gone; return them.

    Needs no lease: the operating system knows. A process that holds the run's folder calls it before it resumes the
    run, and so declares all earlier trainers on this machine lost, even if another process has their number by now.
    """
    here = [item for item in await store.members(run_id, live=True) if item.host == socket.gethostname()]
    gone = [item for item in here if _is_gone(item)]
    return [item for item in gone if await store.declare_lost(item.id, beats=item.beats)]


def _is_gone(member: Member) -> bool:
    if member.id in _own:
        return False
    # An earlier process had the same number, as all first processes of containers have.
    return member.role == "train" or member.pid == os.getpid() or member.seems_gone


def _why_lost(member: Member) -> str:
    return "its process has ended" if member.has_ended else f"no heartbeat for {member.lease_s:g} s"
