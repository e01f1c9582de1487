"""Capacity that waits for agents from elsewhere: slots that training wants sampled, and sessions that were granted."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from typing import TYPE_CHECKING

import attrs

from agentrl_core.concurrency.wakeups import Wakeups
from agentrl_core.errors import RequestError
from agentrl_core.types import Task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentrl_core.gateway.sessions import Session


@attrs.frozen(kw_only=True)
class Claim:
    """What an agent said when it opened a session."""

    task_id: str
    api_key: str | None = attrs.field(default=None, repr=False)
    """A key of its own choice for the session."""


@attrs.define(kw_only=True, eq=False)
class Lease:
    """One slot that training wants sampled: from the scheduler's admission to the session that fills it."""

    task: Task | None
    """None, until somebody takes it, where the agent says what it works on."""
    is_eval: bool
    reserved: bool
    """Whether it is for an agent that works on its task, and for no other."""
    claimed: concurrent.futures.Future[Claim] = attrs.field(factory=concurrent.futures.Future, init=False)
    opened: concurrent.futures.Future[Session] = attrs.field(factory=concurrent.futures.Future, init=False)


class Leases:
    """Who wants a session sampled; thread-safe, of no event loop."""

    def __init__(self) -> None:
        self.training = False
        """Whether a scheduler offers leases: then an agent that comes again with its key goes on to the next one."""
        self._waiting: list[Lease] = []
        self._granted = 0
        self._lock = threading.Lock()
        self._changed = Wakeups()

    @property
    def waiting(self) -> int:
        """Slots that nobody has taken yet."""
        return len(self._waiting)

    @contextlib.contextmanager
    def offer(self, task: Task | None, *, is_eval: bool = False, reserved: bool = False) -> Iterator[Lease]:
        """Let an agent take a slot while the context lasts; who took it and got no session is told to come again."""
        lease = Lease(task=task, is_eval=is_eval, reserved=reserved)
        with self._lock:
            self._waiting.append(lease)
        self._changed.wake()
        try:
            yield lease
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._waiting.remove(lease)
            if not lease.opened.done():
                lease.opened.set_exception(no_capacity())

    def take(self, claim: Claim) -> Lease | None:
        """Hand the first slot of the agent's task to it, or else the first of any; None where none waits."""
        with self._lock:
            its_own = (item for item in self._waiting if item.task is not None and item.task.id == claim.task_id)
            others = (item for item in self._waiting if not item.reserved)
            lease = next(its_own, None) or next(others, None)
            if lease is not None:
                self._waiting.remove(lease)
                lease.task = lease.task or Task(id=claim.task_id, data={"id": claim.task_id, "messages": []})
                lease.claimed.set_result(claim)
        return lease

    async def wait(self, claim: Claim, *, timeout_s: float) -> Lease | None:
        """Like `take`, but wait until a slot is there, or the time is over."""
        end = time.monotonic() + timeout_s
        with self._changed.listen() as changed:
            while (lease := self.take(claim)) is None and (left := end - time.monotonic()) > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), left)
                changed.clear()
        return lease

    def grant(self) -> int:
        """Allow one more session outside training; how many are allowed now."""
        with self._lock:
            self._granted += 1
            return self._granted

    def take_grant(self) -> bool:
        """Use one of the sessions that were granted, if there is one."""
        with self._lock:
            self._granted -= (found := self._granted > 0)
        return found


def no_capacity() -> RequestError:
    """Make the refusal of a session that nobody wants sampled now."""
    return RequestError(
        429,
        "no_capacity",
        "no session is wanted now: training waits for those that run, or POST /grant_capacity has allowed no more",
        retry_after_s=1.0,
    )
