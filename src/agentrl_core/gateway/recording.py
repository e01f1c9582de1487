"""Record the replies of a call before they are sent, the same way for calls to the policy and to upstreams."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import attrs

from agentrl_core.api.audit import digested

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from agentrl_core.api.stores import Store
    from agentrl_core.gateway.call_types import ChatRequest, Delta, Reply, ReplyHead
    from agentrl_core.gateway.metering import CpuMeter
    from agentrl_core.gateway.retries import Attempt
    from agentrl_core.gateway.sessions import Session
    from agentrl_core.types import Interaction


@attrs.define(kw_only=True, eq=False)
class Recorder:
    """Destination of the replies of many calls, with their number; thread-safe."""

    store: Store
    run_id: str
    meter: CpuMeter
    num_replies: int = attrs.field(default=0, init=False)
    """Number of replies recorded so far."""
    lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)


@attrs.define(kw_only=True, eq=False)
class OpenCall(ABC):
    """One call that is being answered."""

    id: str
    """Id of the response."""
    session: Session
    request: ChatRequest
    attempt: Attempt | None
    """Entry by which a retry finds this call; None if its client announces no retries."""
    recorder: Recorder

    @property
    @abstractmethod
    def head(self) -> ReplyHead:
        """Facts of the reply that are known before its first token."""

    @abstractmethod
    async def complete(self) -> Reply:
        """Return the whole reply, which is recorded by then; `RequestError` if there is none."""

    @abstractmethod
    def stream(self) -> AsyncGenerator[Delta | Reply, None]:
        """Yield the parts of the reply as they come, and last the whole reply, which is recorded by then.

        Closing the iterator earlier ends the call, and nothing is recorded.
        """

    @abstractmethod
    def _reply(self, first_seq: int) -> Reply:
        """Build the complete reply; its interactions are numbered from `first_seq`."""

    @abstractmethod
    def _remember(self, interactions: Sequence[Interaction]) -> None:
        """Add the interactions to the session's ledger; the caller holds the session's lock."""

    async def _record(self, count: int) -> Reply:
        """Record the complete reply with its `count` choices; `RequestError` (410) if the episode has ended."""
        session = self.session
        stored: concurrent.futures.Future[None] = concurrent.futures.Future()
        # Under one lock with the check: a session that closes now either refuses this call or waits for its write.
        with session.lock:
            session.check_open()
            first_seq = session.num_finished
            session.num_finished += count
            session.writes.add(stored)
        reply = self._reply(first_seq)
        # The reply is complete: from now on a disconnect does not undo it, and a retry may get it.
        if self.attempt is not None:
            self.attempt.storing = True
        await asyncio.shield(asyncio.ensure_future(self.recorder.meter.run(self._store(reply, stored))))
        return reply

    async def _store(self, reply: Reply, stored: concurrent.futures.Future[None]) -> None:
        session, recorder, recorded = self.session, self.recorder, False
        try:
            interactions = [digested(choice.interaction) for choice in reply.choices]
            for interaction in interactions:
                await recorder.store.add_interaction(recorder.run_id, interaction)
            # Only after the store has them: a write that fails must leave no trace in the session.
            with session.lock:
                session.interactions.extend(interactions)
                self._remember(interactions)
            with recorder.lock:
                recorder.num_replies += len(interactions)
            recorded = True
        finally:
            session.writes.discard(stored)
            stored.set_result(None)
            # A reply that could not be stored is not given to a retry: it would be sent and be in no record.
            if self.attempt is not None:
                self.attempt.settle(reply.choices if recorded else None)
