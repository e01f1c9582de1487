"""Wait for agents that run elsewhere, in place of running one: they take a slot, make its calls, and are rewarded."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from agentrl_core.errors import EpisodeError, RequestError
from agentrl_core.gateway.visit import last_call, until_over
from agentrl_core.rollout.attempts import Attempt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from agentrl_core.config.schema import GatewayConfig, RolloutConfig, SamplingConfig
    from agentrl_core.gateway import Gateway, Session
    from agentrl_core.gateway.leases import Lease
    from agentrl_core.types import Record, Task


class Visitors:
    """Fills the slots of a run with the sessions that agents open by themselves."""

    def __init__(self, gateway: Gateway, config: RolloutConfig, gateway_config: GatewayConfig) -> None:
        self._gateway = gateway
        self._limit_s = config.timeout_s
        self._reward_timeout_s = config.agent.reward_timeout_s
        self._ttl_s = gateway_config.session_ttl_s
        gateway.leases.training = True

    @contextlib.asynccontextmanager
    async def next(self, task: Task, *, is_eval: bool) -> AsyncIterator[Lease]:
        """Offer a slot, and wait for the agent that takes it: for ever, as nothing runs out while nobody works."""
        with self._gateway.leases.offer(task, is_eval=is_eval) as lease:
            # Shielded: a future that this wait cancelled could not be taken any more.
            await asyncio.shield(asyncio.wrap_future(lease.claimed))
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
        if not await visit.until(lambda: bool(visit.rewards), timeout_s=self._reward_timeout_s):
            return Attempt(
                error=EpisodeError(
                    "no_reward",
                    f"no reward came within rollout.agent.reward_timeout_s = {self._reward_timeout_s:g} s after the "
                    "session's end; POST /rl/set_reward before it ends, or soon after",
                )
            )
        return Attempt(value=_reward(visit.settle(session), last.id))


def _reward(rewards: Mapping[str, float], last: str) -> float | dict[str, float]:
    """Return the reward of the last call alone as that of the whole record."""
    return rewards[last] if set(rewards) == {last} else dict(rewards)
