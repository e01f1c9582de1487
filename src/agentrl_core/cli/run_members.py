"""The members of a run as a command sees them: which may be alive, and waiting until they have left."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from agentrl_core.api.members import Member
    from agentrl_core.api.stores import Store

RECHECK_S = 0.5
"""Longest time until a command notices what other processes have written."""


def is_gone(member: Member) -> bool:
    """Return whether a live member's process has ended on this host; nothing tells about those of other hosts."""
    if member.state != "live" or member.host != socket.gethostname():
        return False
    try:
        os.kill(member.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's process
        return False
    return False


@attrs.define
class HeartbeatWatch:
    """Times since the heartbeats of members changed, by this process's clock alone."""

    _clock: Callable[[], float] = time.monotonic
    _seen: dict[str, tuple[int, float]] = attrs.field(factory=dict, init=False)
    """Member id -> its heartbeats, and when they were first seen."""
    beaten: set[str] = attrs.field(factory=set, init=False)
    """Ids of members that were seen to beat."""

    def silence_s(self, member: Member) -> float:
        """Return for how long this watch has seen no heartbeat of a member; 0 at the first look."""
        now = self._clock()
        beats, since = self._seen.get(member.id, (-1, now))
        if beats == member.beats:
            return now - since
        if beats >= 0:
            self.beaten.add(member.id)
        self._seen[member.id] = (member.beats, now)
        return 0.0


async def wait_until_left(
    store: Store, run_id: str, *, wait_s: float, clock: Callable[[], float] = time.monotonic
) -> list[Member]:
    """Wait up to `wait_s` until no member is live any more, and return those that still are.

    A member that is silent for its lease is declared lost, as any other member would do.
    """
    watch, seen, end = HeartbeatWatch(clock), 0, clock() + wait_s
    while True:
        live = []
        for member in _live(await store.members(run_id)):
            if is_gone(member):
                continue
            if watch.silence_s(member) <= member.lease_s:
                live.append(member)
            else:
                await store.declare_lost(member.id, beats=member.beats)
        left = end - clock()
        if not live or left <= 0:
            return live
        seen = await store.changed(run_id, seen, timeout_s=min(RECHECK_S, left))


async def confirmed_live(
    store: Store,
    run_id: str,
    *,
    notice: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> list[Member]:
    """Return the members that are alive: their process runs on this host, or a heartbeat of theirs comes.

    Waits for the heartbeats of members on other hosts, up to their lease, unless a process on this host runs; then all
    members that the store calls live are returned. `notice` gets a line before that wait.
    """
    members = _live(await store.members(run_id))
    here = [member for member in members if member.host == socket.gethostname()]
    if not members or any(not is_gone(member) for member in here):
        return [member for member in members if not is_gone(member)]
    remote = [member for member in members if member not in here]
    if not remote:
        return []
    lease_s = max(member.lease_s for member in remote)
    notice(f"waiting up to {lease_s:g} s for a heartbeat of {', '.join(member.name for member in remote)}")
    watch, seen, end = HeartbeatWatch(clock), 0, clock() + lease_s
    while True:
        found = _live(await store.members(run_id))
        for member in found:
            watch.silence_s(member)
        alive = [member for member in found if member.id in watch.beaten]
        left = end - clock()
        if alive or left <= 0:
            return alive
        seen = await store.changed(run_id, seen, timeout_s=min(RECHECK_S, left))


def how_to_end(members: Sequence[Member]) -> str:
    """Return the command that ends each member's process, with its host if that is another one."""
    return ", ".join(
        f"kill {member.pid}" + ("" if member.host == socket.gethostname() else f" (on {member.host})")
        for member in members
    )


def _live(members: Iterable[Member]) -> list[Member]:
    return [member for member in members if member.state == "live"]
