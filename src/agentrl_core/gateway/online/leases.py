"""Hand waiting slots to online agents: the slots that training offers, and the sessions that the admin granted."""

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
    """Request of an online agent to open a session."""

    task_id: str
    """Task that the agent says it works on."""
    api_key: str | None = attrs.field(default=None, repr=False)
    """API key that the agent chose for the session; None: the gateway creates one."""


@attrs.define(kw_only=True, eq=False)
class Lease:
    """One slot that training offers: lives from the scheduler's admission until a session fills it."""

    task: Task | None
    """Task of the slot; None until an agent takes the slot and names its task."""
    is_eval: bool
    """Whether the slot's record is an evaluation."""
    reserved: bool
    """Whether only an agent that names this task may take the slot."""
    claimed: concurrent.futures.Future[Claim] = attrs.field(factory=concurrent.futures.Future, init=False)
    """Future of the agent's claim, for the run."""
    opened: concurrent.futures.Future[Session] = attrs.field(factory=concurrent.futures.Future, init=False)
    """Future of the session that the run opens, for the agent's request."""


class Leases:
    """Queue of the slots that wait for online agents; thread-safe, usable from several event loops."""

    def __init__(self) -> None:
        self.training = False
        """Whether a scheduler offers leases; then an agent that starts again with its key gets the next slot."""
        self._waiting: list[Lease] = []
        self._granted = 0
        self._lock = threading.Lock()
        self._changed = Wakeups()

    @property
    def waiting(self) -> int:
        """Number of slots that no agent has taken yet."""
        return len(self._waiting)

    @contextlib.contextmanager
    def offer(self, task: Task | None, *, is_eval: bool = False, reserved: bool = False) -> Iterator[Lease]:
        """Offer a slot while the context lasts; an agent that took it and got no session gets 429 (`no_capacity`)."""
        lease = Lease(task=task, is_eval=is_eval, reserved=reserved)
        with self._lock:
            self._waiting.append(lease)
        self._changed.wake()
        try:
            yield lease
        finally:
            # ValueError: an agent has taken the lease already.
            with self._lock, contextlib.suppress(ValueError):
                self._waiting.remove(lease)
            if not lease.opened.done():
                lease.opened.set_exception(no_capacity())

    def take(self, claim: Claim) -> Lease | None:
        """Take the first slot of the agent's task, else the first that is not reserved; None if none waits."""
        with self._lock:
            its_own = (item for item in self._waiting if item.task is not None and item.task.id == claim.task_id)
            # A slot with another task is as good: the agent gets that task in the reply.
            others = (item for item in self._waiting if not item.reserved)
            lease = next(its_own, None) or next(others, None)
            if lease is not None:
                self._waiting.remove(lease)
                lease.task = lease.task or Task(id=claim.task_id, data={"id": claim.task_id, "messages": []})
                lease.claimed.set_result(claim)
        return lease

    async def wait(self, claim: Claim, *, timeout_s: float) -> Lease | None:
        """Take a slot as `take` does, but wait for one up to `timeout_s`; None after that."""
        end = time.monotonic() + timeout_s
        with self._changed.listen() as changed:
            while (lease := self.take(claim)) is None and (left := end - time.monotonic()) > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), left)
                changed.clear()
        return lease

    def grant(self) -> int:
        """Allow one more session outside training, and return how many are allowed now."""
        with self._lock:
            self._granted += 1
            return self._granted

    def take_grant(self) -> bool:
        """Use up one granted session; return False if there is none."""
        with self._lock:
            self._granted -= (found := self._granted > 0)
        return found


def no_capacity() -> RequestError:
    """Build the error (429) for an agent for which there is no slot and no granted session."""
    return RequestError(
        429,
        "no_capacity",
        "no session is wanted now; try again later: training waits for running sessions, or none was granted by "
        "POST /grant_capacity",
        retry_after_s=1.0,
    )
