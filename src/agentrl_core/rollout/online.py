"""Wait for agents that run elsewhere, in place of running one: they take a slot, make its calls, and are rewarded."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from agentrl_core.errors import EpisodeError, RequestError
from agentrl_core.gateway.online.session import last_call, until_over
from agentrl_core.rollout.attempts import Attempt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from agentrl_core.config.schema import GatewayConfig, RolloutConfig, SamplingConfig
    from agentrl_core.gateway import Gateway, Session
    from agentrl_core.gateway.online.leases import Lease
    from agentrl_core.gateway.online.session import Visit
    from agentrl_core.types import Record, Task


class NobodyCame(Exception):  # noqa: N818 - no error: what an agent leaves undone
    """A slot of a group was taken by no agent in time."""


class Visitors:
    """Fills the slots of a run with the sessions that agents open by themselves."""

    def __init__(self, gateway: Gateway, config: RolloutConfig, gateway_config: GatewayConfig) -> None:
        self._gateway = gateway
        self._limit_s = config.timeout_s
        self._reward_timeout_s = config.agent.reward_timeout_s
        self._reward_grace_s = config.agent.reward_grace_s
        self._ttl_s = gateway_config.session_ttl_s
        self._lease_timeout_s = config.agent.lease_timeout_s
        self._first: dict[str, Lease] = {}
        """Group -> its first slot, of groups whose task is what their first agent works on."""
        self._unplanned: set[str] = set()
        """Those groups."""
        gateway.leases.training = True

    @contextlib.asynccontextmanager
    async def group(self, group_id: str) -> AsyncIterator[Task]:
        """Let the next agent say what a group works on; its other slots are for agents that work on the same."""
        with self._gateway.leases.offer(None) as lease:
            await _taken(lease)
            if lease.task is None:
                raise TypeError("a lease was taken without a task")
            self._first[group_id] = lease
            self._unplanned.add(group_id)
            try:
                yield lease.task
            finally:
                self._first.pop(group_id, None)
                self._unplanned.discard(group_id)

    @contextlib.asynccontextmanager
    async def next(self, task: Task, group_id: str, *, is_eval: bool) -> AsyncIterator[Lease]:
        """Offer a slot, and wait for the agent that takes it.

        For ever, as nothing runs out while nobody works; but `NobodyCame` where a group that an agent has begun
        finds no other in time.
        """
        first = self._first.pop(group_id, None)
        if first is not None:
            yield first
            return
        reserved = group_id in self._unplanned
        with self._gateway.leases.offer(task, is_eval=is_eval, reserved=reserved) as lease:
            try:
                async with asyncio.timeout(self._lease_timeout_s if reserved else None):
                    await _taken(lease)
            except TimeoutError:
                if not lease.claimed.done():  # not in the last moment
                    raise NobodyCame from None
            yield lease

    async def open(
        self, lease: Lease, record: Record, *, seed_key: tuple[int, ...], sampling: SamplingConfig | None
    ) -> Session:
        """Open the session of the agent that took a slot, and tell it."""
        try:
            session = await self._gateway.open_visit(
                record, lease.claimed.result(), seed_key=seed_key, sampling=sampling
            )
        except RequestError as refusal:  # the agent's key was taken meanwhile: it is told, and the slot is lost
            lease.opened.set_exception(refusal)
            raise EpisodeError("no_session", str(refusal)) from refusal
        lease.opened.set_result(session)
        return session

    async def attempt(self, task: Task, session: Session) -> Attempt:
        """Wait until the agent has ended its session and its reward is there."""
        visit = session.visit
        if visit is None:
            raise TypeError("the session was not opened by an agent from elsewhere")
        bound = await until_over(session, visit, ttl_s=self._ttl_s, limit_s=self._limit_s)
        if bound:
            return Attempt(timed_out=True, detail=f"the agent left its session {bound}; it must POST /rl/end_session")
        last = last_call(session)
        if last is None or (task.scorer is not None and not visit.rewards):
            return Attempt()  # there is nothing to reward, or the task's scorer does that
        end = time.monotonic() + self._reward_timeout_s
        if not await visit.until(lambda: bool(visit.rewards), timeout_s=self._reward_timeout_s):
            return Attempt(
                error=EpisodeError(
                    "no_reward",
                    f"no reward came within rollout.agent.reward_timeout_s = {self._reward_timeout_s:g} s after the "
                    "session's end; POST /rl/set_reward before it ends, or soon after",
                )
            )
        await self._more_rewards(visit, session, end)
        return Attempt(value=_reward(visit.settle(session), last.id))

    async def _more_rewards(self, visit: Visit, session: Session, end: float) -> None:
        """Wait for the rewards of single calls, which come one by one: until all are there, or none has come for long.

        To settle with the first would refuse the others, and train what one call was worth as if it were all.
        """
        came = True
        while came and not visit.has_all_rewards(session):
            seen = visit.num_rewards
            patience_s = min(self._reward_grace_s, end - time.monotonic())
            came = await visit.until(lambda: visit.num_rewards != seen, timeout_s=patience_s)  # noqa: B023  (it ends here)


async def _taken(lease: Lease) -> None:
    # Shielded: a future that this wait cancelled could not be taken any more.
    await asyncio.shield(asyncio.wrap_future(lease.claimed))


def _reward(rewards: Mapping[str, float], last: str) -> float | dict[str, float]:
    """Return the reward of the last call alone as that of the whole record."""
    return rewards[last] if set(rewards) == {last} else dict(rewards)
