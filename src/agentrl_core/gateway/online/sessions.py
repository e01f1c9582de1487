"""Open, restore, reward and close the sessions of online agents, and keep them in the store.

`routes` has the HTTP routes that call this, `session` the state of one session, `leases` the slots that are waiting.
Training waits for an owned session; any other is granted by the admin and ends when it is exported or has expired.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from typing import TYPE_CHECKING, Any

from agentrl_core.api.stores import SessionRow
from agentrl_core.errors import RequestError
from agentrl_core.gateway.history.restoring import restore, restore_attempts
from agentrl_core.gateway.online.session import OnlineSession, last_call, until_over
from agentrl_core.gateway.sessions import session_ended
from agentrl_core.types import Outcome, Record, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentrl_core.api.stores import Store
    from agentrl_core.gateway.online.leases import Claim
    from agentrl_core.gateway.policy_calls import PolicyCalls
    from agentrl_core.gateway.sampling_parameters import SamplingPolicy
    from agentrl_core.gateway.sessions import Session, SessionBook
    from agentrl_core.gateway.upstream_calls import UpstreamCalls
    from agentrl_core.types import Interaction

_logger = logging.getLogger(__name__)

SESSIONS = "sessions"
"""Task set of sessions outside training. It is separate from the config's sets, because agents may repeat their ids."""
_KEPT_OF_A_POLICY = ("temperature", "top_p", "top_k", "max_tokens", "training")
"""Fields of a session's `SamplingPolicy` that are stored; a restarted gateway takes the rest from model and config."""


class OnlineSessions:
    """All online sessions of a run; the store keeps them, so they outlive the process.

    `policy(…)` builds sampling rules: those of training, with the given fields replaced.
    """

    def __init__(
        self,
        *,
        sessions: SessionBook,
        calls: PolicyCalls,
        upstream_calls: UpstreamCalls,
        store: Store,
        run_id: str,
        policy: Callable[..., SamplingPolicy],
        ttl_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sessions = sessions
        self._calls = calls
        self._upstream_calls = upstream_calls
        self._store = store
        self._run_id = run_id
        self._policy = policy
        self._clock = clock
        self.ttl_s = ttl_s
        """Time after which an idle session is closed, in seconds; 0: never."""
        self._watches: set[asyncio.Task[None]] = set()

    async def open(
        self, record: Record, claim: Claim, *, policy: SamplingPolicy, seed_key: tuple[int, ...], owned: bool
    ) -> Session:
        """Open the session of a record that is in the store; the session is stored, too, when this returns.

        `owned` tells whether training waits for it. `RequestError` (409) if the claim's API key is in use.
        """
        online = OnlineSession(task_id=claim.task_id, owned=owned, opened_at=self._clock())
        session = self._sessions.open(record, policy=policy, seed_key=seed_key, api_key=claim.api_key, online=online)
        row = SessionRow(
            record_id=record.id,
            run_id=self._run_id,
            group_id=record.group_id,
            task_id=claim.task_id,
            key_hash=session.key_hash,
            token_hash=session.token_hash,
            seed_key=seed_key,
            policy={name: getattr(policy, name) for name in _KEPT_OF_A_POLICY},
            opened_at=online.opened_at,
        )
        # A session that is not in the store would not survive a restart, so the agent must not get it.
        try:
            await self._store.add_session(row)
        except BaseException:
            self._sessions.end(session)
            raise
        return session

    async def open_granted(self, claim: Claim, *, version: int) -> Session:
        """Open a session outside training: its calls are recorded, and the first export takes them."""
        now = self._clock()
        task = Task(id=claim.task_id, data={"id": claim.task_id, "messages": []})
        await self._store.add_tasks(self._run_id, [task], task_set=SESSIONS)
        (group_id,) = await self._store.add_evaluation(
            self._run_id, SESSIONS, [task.id], version=version, claimable=False
        )
        record = Record(
            id=uuid.uuid4().hex[:16],
            run_id=self._run_id,
            task_id=claim.task_id,
            group_id=group_id,
            sample_index=0,
            is_eval=True,  # so that no trainer takes its group
            task_set=SESSIONS,
            started_at=now,
        )
        await self._store.add_record(record)
        # Random keys: unlike the slots of training, these sessions have no order that a second run would repeat.
        seed_key = (2, uuid.uuid4().int >> 65)
        session = await self.open(record, claim, policy=self._policy(), seed_key=seed_key, owned=False)
        self._watch(session)
        return session

    async def restore(self) -> int:
        """Load the sessions that an earlier process left in the store; return how many of them are open.

        Their calls are not loaded yet: `load` does that before a session is used.
        """
        rows = await self._store.sessions(self._run_id)
        self._sessions.remember_ends(
            digest for row in rows if row.state == "closed" for digest in (row.key_hash, row.token_hash)
        )
        living = [row for row in rows if row.state != "closed" and self._sessions.online_session(row.record_id) is None]
        for row in living:
            online = OnlineSession(
                task_id=row.task_id,
                owned=False,
                opened_at=row.opened_at,
                state=row.state,
                over=row.state != "open",
                rewards=dict(row.rewards),
            )
            self._watch(self._sessions.restore(row, policy=self._policy(**row.policy), online=online))
        return sum(row.state == "open" for row in living)

    async def load(self, session: Session) -> None:
        """Read the calls of a restored session from the store, unless that was done before."""
        if not session.unloaded:
            return
        episode = await self._store.episode(session.record_id)
        interactions = episode.interactions if episode is not None else ()
        num_calls = self._calls.count_calls(session, interactions)
        num_upstream_calls = self._upstream_calls.count_calls(session, interactions)
        with session.lock:
            # Another call may have loaded them while this one waited for the store.
            if session.unloaded:
                session.interactions.extend(interactions)
                session.num_calls, session.num_upstream_calls = num_calls, num_upstream_calls
                session.num_finished = len(interactions)
                restore(session.ledger, self._calls.chat, interactions)
                if episode is not None:
                    restore_attempts(session.attempts, self._calls.chat, episode)
                session.unloaded = False

    async def end(self, session: Session) -> int:
        """End a session at its agent's request and return the number of its finished calls.

        Rewards are still accepted. `RequestError` (410) if it has ended before.
        """
        online = _online(session)
        await self.load(session)
        with session.lock:
            if online.state != "open":
                raise session_ended()
            online.state, session.closed = "ended", True
        await self._finish_calls(session, online)
        return len(session.interactions)

    async def reward(
        self, session: Session, value: float, interaction_id: str | None, *, final: bool | None = None
    ) -> None:
        """Set the reward of a finished policy call, of the last one without an id; a later reward replaces it.

        `final`: no more rewards follow; None: `OnlineSession.has_all_rewards` decides. `RequestError` (400) for
        an unknown call, (410) if the session is closed.
        """
        online = _online(session)
        await self.load(session)
        with session.lock:
            if online.state == "closed":
                raise session_ended()
            last = last_call(session)
            if last is None:
                raise RequestError(400, "no_interaction", "no call of this session has finished: nothing to reward")
            if interaction_id is None:
                interaction_id = last.id
                # Without an id the reward is for the whole session, unless the agent says with `final` what follows.
                online.whole_for = last.id if final is None else ""
            elif not any(item.id == interaction_id and item.trainable for item in session.interactions):
                raise RequestError(
                    400,
                    "unknown_interaction",
                    f"'{interaction_id[:100]}' is no call to the policy in this session; the last one is '{last.id}'",
                    param="interaction_id",
                )
            online.rewards[interaction_id] = value
            online.num_rewards += 1
            online.final = bool(final)
        await self._save(session, online)
        online.wake()

    async def close(self, session: Session) -> tuple[Mapping[str, float], tuple[Interaction, ...]] | None:
        """Close a session and return its rewards and its calls in order of completion; None if it is closed already."""
        online = _online(session)
        await self.load(session)
        # State and rewards change under one lock: of two exports one gets the session, and no reward is lost between.
        with session.lock:
            taken, online.state, session.closed = online.state == "closed", "closed", True
            rewards = dict(online.rewards)
        self._sessions.end(session)
        await self._finish_calls(session, online)
        if taken:
            return None
        return rewards, tuple(sorted(session.interactions, key=lambda interaction: interaction.seq))

    async def finish(
        self, session: Session, outcome: Outcome, *, reason: str = "", rewards: Mapping[str, float]
    ) -> None:
        """Write the outcome of a session outside training to the store."""
        record = Record(
            id=session.record_id,
            run_id=self._run_id,
            task_id=_online(session).task_id,
            group_id=session.group_id,
            sample_index=0,
            outcome=outcome,
            reason=reason,
            reward=math.fsum(rewards.values()) if rewards else None,
            rewards=rewards,
            finished_at=self._clock(),
        )
        await self._store.finish_record(record)

    def _watch(self, session: Session) -> None:
        """Start the task that closes a session outside training when it has been idle for `ttl_s`."""
        if self.ttl_s and not session.closed:
            # The event loop keeps weak references to tasks only, so the set keeps them alive.
            watch = asyncio.ensure_future(self._expire(session))
            self._watches.add(watch)
            watch.add_done_callback(self._watches.discard)

    async def _expire(self, session: Session) -> None:
        # `close` returns None if an export has taken the session in the meantime; then its outcome is written there.
        if await until_over(session, _online(session), ttl_s=self.ttl_s) and (await self.close(session)) is not None:
            _logger.info("session %s was idle for %g s and is closed", session.record_id, self.ttl_s)
            await self.finish(session, Outcome.TIMED_OUT, reason="", rewards={})

    async def _finish_calls(self, session: Session, online: OnlineSession) -> None:
        """Abort running calls, wait for pending writes, and wake the tasks that wait for the session's end."""
        try:
            await self._calls.abort_all(session)
            await self._save(session, online)
        # Also after a failure: an export or the run would otherwise wait for ever.
        finally:
            online.over = True
            online.wake()

    async def _save(self, session: Session, online: OnlineSession) -> None:
        """Write a session's state and rewards to the store, and repeat until they did not change during the write.

        Two threads may write at once, and the older state may arrive last. The thread that wrote it then sees the
        change and writes again.
        """
        written = None
        while True:
            with session.lock:
                state, rewards = online.state, dict(online.rewards)
            if written == (state, rewards):
                return
            await self._store.update_session(session.record_id, state=state, rewards=rewards)
            written = state, rewards


def describe(session: Session) -> dict[str, Any]:
    """Describe a session for `GET /rl/sessions`, without its secrets."""
    online = _online(session)
    return {
        "session_id": session.record_id,
        "task_id": online.task_id,
        "state": online.state,
        "interaction_count": len(session.interactions),
        "rewards": dict(online.rewards),
        "opened_at": online.opened_at,
        "idle_s": round(time.monotonic() - session.used_at, 3),
        "training": online.owned,
    }


def _online(session: Session) -> OnlineSession:
    if session.online is None:
        raise RequestError(403, "not_yours", "this session belongs to the run that opened it")
    return session.online
