"""Write finished replies to the store, and only then to their session's history and to retries that wait for them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentrl_core.api.stores import Store
    from agentrl_core.gateway.call_types import OpenCall, Reply
    from agentrl_core.gateway.metering import CpuMeter
    from agentrl_core.types import Interaction


class Recorder:
    """Records the replies of calls to the policy, or of calls to upstreams, and counts them."""

    def __init__(self, store: Store, run_id: str, meter: CpuMeter) -> None:
        self._store = store
        self._run_id = run_id
        self._meter = meter
        # Replies are recorded on several event loops.
        self._lock = threading.Lock()
        self.replies = 0
        """Number of replies recorded so far."""

    async def record(
        self,
        call: OpenCall,
        count: int,
        build: Callable[[int], Reply],
        remember: Callable[[Sequence[Interaction]], None],
    ) -> Reply:
        """Record the `count` replies of a completely sampled call; they may be sent when this returns.

        `build(seq)` builds them, numbered from `seq`; `remember` adds their interactions to the session's ledger, under
        the session's lock. `RequestError` (410) if the episode has ended.
        """
        session = call.session
        stored: concurrent.futures.Future[None] = concurrent.futures.Future()
        # Under one lock with the check: a session that closes now either refuses this call or waits for its write.
        with session.lock:
            session.check_open()
            first_seq = session.num_finished
            session.num_finished += count
            session.writes.add(stored)
        reply = build(first_seq)
        # The reply is complete: from now on a disconnect does not undo it, and a retry may get it.
        if call.attempt is not None:
            call.attempt.storing = True
        storing = self._meter.run(self._store_reply(call, reply, remember, stored))
        await asyncio.shield(asyncio.ensure_future(storing))
        return reply

    async def _store_reply(
        self,
        call: OpenCall,
        reply: Reply,
        remember: Callable[[Sequence[Interaction]], None],
        stored: concurrent.futures.Future[None],
    ) -> None:
        session, interactions = call.session, [choice.interaction for choice in reply.choices]
        recorded = False
        try:
            for interaction in interactions:
                await self._store.add_interaction(self._run_id, interaction)
            # Only after the store has them: a write that fails must leave no trace in the session.
            with session.lock:
                session.interactions.extend(interactions)
                remember(interactions)
            with self._lock:
                self.replies += len(interactions)
            recorded = True
        finally:
            session.writes.discard(stored)
            stored.set_result(None)
            # A reply that could not be stored is not given to a retry: it would be sent and be in no record.
            if call.attempt is not None:
                call.attempt.settle(reply.choices if recorded else None)
