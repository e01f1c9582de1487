"""Sessions of agents from elsewhere: opened by their request, kept in the store, ended and rewarded by themselves."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from typing import TYPE_CHECKING, Any

from agentrl_core.api.stores import SessionRow
from agentrl_core.errors import RequestError
from agentrl_core.gateway.history.past import restore, restore_attempts
from agentrl_core.gateway.online.visit import Visit, last_call, until_over
from agentrl_core.gateway.sessions import session_ended
from agentrl_core.types import Outcome, Record, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentrl_core.api.stores import Store
    from agentrl_core.gateway.online.leases import Claim
    from agentrl_core.gateway.sampling import SamplingPolicy
    from agentrl_core.gateway.service import PolicyService
    from agentrl_core.gateway.sessions import Session, SessionBook
    from agentrl_core.types import Interaction

_logger = logging.getLogger(__name__)

SESSIONS = "sessions"
"""Task set of what agents say they work on outside training: none of the config's sets, whose ids they may repeat."""
_KEPT_OF_A_POLICY = ("temperature", "max_tokens", "training")
"""What a restarted gateway takes from the store; the rest is in the model and the config."""


class Visits:
    """All sessions that outlive their process. `policy(…)` makes sampling rules; by default those of training."""

    def __init__(
        self,
        *,
        sessions: SessionBook,
        service: PolicyService,
        store: Store,
        run_id: str,
        policy: Callable[..., SamplingPolicy],
        ttl_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sessions = sessions
        self._service = service
        self._store = store
        self._run_id = run_id
        self._policy = policy
        self._clock = clock
        self.ttl_s = ttl_s
        """How long a session may be idle; 0: for ever."""
        self._watches: set[asyncio.Task[None]] = set()

    async def open(
        self, record: Record, claim: Claim, *, url: str, policy: SamplingPolicy, seed_key: tuple[int, ...], owned: bool
    ) -> Session:
        """Let the agent of a claim make the calls of an announced record; it is in the store when this returns."""
        visit = Visit(task_id=claim.task_id, owned=owned, opened_at=self._clock())
        session = self._sessions.open(
            record, url=url, policy=policy, seed_key=seed_key, api_key=claim.api_key, visit=visit
        )
        row = SessionRow(
            record_id=record.id,
            run_id=self._run_id,
            group_id=record.group_id,
            task_id=claim.task_id,
            key_hash=session.key_hash,
            token_hash=session.token_hash,
            seed_key=seed_key,
            policy={name: getattr(policy, name) for name in _KEPT_OF_A_POLICY},
            opened_at=visit.opened_at,
        )
        try:
            await self._store.add_session(row)
        except BaseException:
            self._sessions.end(session)
            raise
        return session

    async def open_granted(self, claim: Claim, *, url: str, version: int) -> Session:
        """Open a session outside training: recorded, and exported by whoever asks for it first."""
        now, group_id = self._clock(), uuid.uuid4().hex[:16]
        record = Record(
            id=uuid.uuid4().hex[:16],
            run_id=self._run_id,
            task_id=claim.task_id,
            group_id=group_id,
            sample_index=0,
            is_eval=True,  # no trainer takes its group
            task_set=SESSIONS,
            started_at=now,
        )
        task = Task(id=claim.task_id, data={"id": claim.task_id, "messages": []})
        await self._store.add_tasks(self._run_id, [task], task_set=SESSIONS)
        await self._store.add_group(self._run_id, group_id, task.id, index=0, size=1, version=version, is_eval=True)
        await self._store.add_record(record)
        # Random keys: unlike the slots of training, these sessions have no order that a second run would repeat.
        seed_key = (2, uuid.uuid4().int >> 65)
        session = await self.open(record, claim, url=url, policy=self._policy(), seed_key=seed_key, owned=False)
        self._watch(session)
        return session

    async def restore(self) -> int:
        """Go on with the sessions that an earlier process left in the store; how many are open."""
        rows = await self._store.sessions(self._run_id)
        self._sessions.remember_ends(
            digest for row in rows if row.state == "closed" for digest in (row.key_hash, row.token_hash)
        )
        living = [row for row in rows if row.state != "closed" and self._sessions.visit_of(row.record_id) is None]
        for row in living:
            visit = Visit(
                task_id=row.task_id,
                owned=False,
                opened_at=row.opened_at,
                state=row.state,
                over=row.state != "open",
                rewards=dict(row.rewards),
            )
            self._watch(self._sessions.restore(row, policy=self._policy(**row.policy), visit=visit))
        return sum(row.state == "open" for row in living)

    async def load(self, session: Session) -> None:
        """Read the past of a session that another process opened, unless it is known."""
        if not session.forgotten:
            return
        episode = await self._store.episode(session.record_id)
        interactions = episode.interactions if episode is not None else ()
        num_calls = self._service.count_calls(session, interactions)
        num_forwarded = self._service.count_forwarded(session, interactions)
        with session.lock:
            if session.forgotten:
                session.interactions.extend(interactions)
                session.num_calls, session.num_forwarded = num_calls, num_forwarded
                session.num_finished = len(interactions)
                restore(session.ledger, self._service.chat, interactions)
                if episode is not None:
                    restore_attempts(session.attempts, self._service.chat, episode)
                session.forgotten = False

    async def end(self, session: Session) -> int:
        """End a session as its agent asks; the number of its finished calls. `RequestError` (410) the second time."""
        visit = _visit(session)
        await self.load(session)
        with session.lock:
            if visit.state != "open":
                raise session_ended()
            visit.state, session.closed = "ended", True
        await self._finish_calls(session, visit)
        return len(session.interactions)

    async def reward(
        self, session: Session, value: float, interaction_id: str | None, *, final: bool | None = None
    ) -> None:
        """Reward a finished call of the policy, without an id the last one; rewarding it again replaces its reward.

        `final`: whether it completes the session's rewards; None: as `Visit.has_all_rewards` says.
        """
        visit = _visit(session)
        await self.load(session)
        with session.lock:
            if visit.state == "closed":
                raise session_ended()
            last = last_call(session)
            if last is None:
                raise RequestError(400, "no_interaction", "no call of this session has finished: nothing to reward")
            if interaction_id is None:
                interaction_id = last.id
                visit.whole_for = last.id if final is None else ""
            elif not any(item.id == interaction_id and item.trainable for item in session.interactions):
                raise RequestError(
                    400,
                    "unknown_interaction",
                    f"'{interaction_id[:100]}' is no call to the policy in this session; the last one is '{last.id}'",
                    param="interaction_id",
                )
            visit.rewards[interaction_id] = value
            visit.num_rewards += 1
            visit.final = bool(final)
        await self._save(session, visit)
        visit.wake()

    async def close(self, session: Session) -> tuple[Mapping[str, float], tuple[Interaction, ...]] | None:
        """Take a session's rewards and calls, in order of completion, and forget it; None if it was taken before."""
        visit = _visit(session)
        await self.load(session)
        with session.lock:
            taken, visit.state, session.closed = visit.state == "closed", "closed", True
            rewards = dict(visit.rewards)
        self._sessions.end(session)
        await self._finish_calls(session, visit)
        if taken:
            return None
        return rewards, tuple(sorted(session.interactions, key=lambda interaction: interaction.seq))

    async def finish(
        self, session: Session, outcome: Outcome, *, reason: str = "", rewards: Mapping[str, float]
    ) -> None:
        """Write how a session outside training ended."""
        record = Record(
            id=session.record_id,
            run_id=self._run_id,
            task_id=_visit(session).task_id,
            group_id=session.group_id,
            sample_index=0,
            outcome=outcome,
            reason=reason,
            reward=math.fsum(rewards.values()) if rewards else None,
            rewards=rewards,
            finished_at=self._clock(),
        )
        await self._store.finish_record(record)
        await self._store.finish_group(self._run_id, session.group_id, usable=False)

    def _watch(self, session: Session) -> None:
        """See to it that an idle session outside training ends."""
        if self.ttl_s and not session.closed:
            watch = asyncio.ensure_future(self._expire(session))
            self._watches.add(watch)
            watch.add_done_callback(self._watches.discard)

    async def _expire(self, session: Session) -> None:
        if await until_over(session, _visit(session), ttl_s=self.ttl_s) and (await self.close(session)) is not None:
            _logger.info("session %s was idle for %g s and is closed", session.record_id, self.ttl_s)
            await self.finish(session, Outcome.TIMED_OUT, reason="", rewards={})

    async def _finish_calls(self, session: Session, visit: Visit) -> None:
        """Abort what runs, wait for what is being stored, and tell those who wait for the session."""
        try:
            await self._service.abort_all(session)
            await self._save(session, visit)
        finally:
            visit.over = True
            visit.wake()

    async def _save(self, session: Session, visit: Visit) -> None:
        """Write where the session stands, again if that changed: another thread's newer write may have come first."""
        written = None
        while True:
            with session.lock:
                state, rewards = visit.state, dict(visit.rewards)
            if written == (state, rewards):
                return
            await self._store.update_session(session.record_id, state=state, rewards=rewards)
            written = state, rewards


def describe(session: Session) -> dict[str, Any]:
    """Tell of a session what is no secret."""
    visit = _visit(session)
    return {
        "session_id": session.record_id,
        "task_id": visit.task_id,
        "state": visit.state,
        "interaction_count": len(session.interactions),
        "rewards": dict(visit.rewards),
        "opened_at": visit.opened_at,
        "idle_s": round(time.monotonic() - session.used_at, 3),
        "training": visit.owned,
    }


def _visit(session: Session) -> Visit:
    if session.visit is None:
        raise RequestError(403, "not_yours", "this session belongs to the run that opened it")
    return session.visit
