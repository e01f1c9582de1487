"""The members of a run as a command sees them: which may be alive, and waiting until they have left."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from agentrl_core.run.membership import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentrl_core.api.members import Member
    from agentrl_core.api.stores import Store

RECHECK_S = 0.5
"""Longest time until a command notices what other processes have written."""


def is_gone(member: Member) -> bool:
    """Return whether a live member's process has ended on this host; nothing tells about those of other hosts."""
    return member.state == "live" and member.seems_gone


async def wait_until_left(
    store: Store, run_id: str, *, wait_s: float, clock: Callable[[], float] = time.monotonic
) -> list[Member]:
    """Wait up to `wait_s` until no member is live any more, and return those that still are.

    A member that is silent for its lease is declared lost, as any other member would do.
    """
    watch, seen, end = Watch(store, run_id, clock=clock), 0, clock() + wait_s
    while True:
        await watch.look(RECHECK_S)
        live = [member for member in await store.members(run_id, live=True) if not is_gone(member)]
        left = end - clock()
        if not live or left <= 0:
            return live
        seen = await store.changed(run_id, seen, timeout_s=min(RECHECK_S, left))


async def confirmed_live(
    store: Store, run_id: str, *, notice: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> list[Member]:
    """Return the members that are alive: their process runs on this host, or a heartbeat of theirs comes.

    Waits for the heartbeats of members on other hosts, up to their lease, unless a process on this host runs; then all
    members that the store calls live are returned. `notice` gets a line before that wait. Those that stay silent are
    declared lost.
    """
    members = [member for member in await store.members(run_id, live=True) if not is_gone(member)]
    if not members or any(member.host == socket.gethostname() for member in members):
        return members
    lease_s = max(member.lease_s for member in members)
    names = ", ".join(member.name for member in members)
    watch, seen, end = Watch(store, run_id, clock=clock), 0, clock() + lease_s
    await watch.look(RECHECK_S)
    notice(f"waiting up to {lease_s:g} s for a heartbeat of {names}")
    while True:
        found = await store.members(run_id, live=True)
        alive = [member for member in found if watch.has_beaten(member)]
        left = end - clock()
        if alive or left <= 0:
            return alive
        seen = await store.changed(run_id, seen, timeout_s=min(RECHECK_S, left))
        await watch.look(RECHECK_S)


def how_to_end(members: Sequence[Member]) -> str:
    """Return the command that ends each member's process, with its host if that is another one."""
    return ", ".join(
        f"kill {member.pid}" + ("" if member.host == socket.gethostname() else f" (on {member.host})")
        for member in members
    )
