"""Online mode: fill the slots of groups with episodes of agents that run elsewhere and open their sessions over HTTP.

An agent takes a slot, makes its LLM calls, ends its session, and posts the reward.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.errors import EpisodeError, RequestError
from agentrl_core.gateway.online.session import last_call, until_over
from agentrl_core.gateway.sessions import Session
from agentrl_core.rollout.episode_source import EpisodeSource, OpenEpisode, Seat, SlotNotTaken
from agentrl_core.rollout.run_agent import AgentResult

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from agentrl_core.config.sampling_sections import AgentConfig, GatewayConfig, RolloutConfig, SamplingConfig
    from agentrl_core.gateway import Gateway
    from agentrl_core.gateway.online.leases import Lease
    from agentrl_core.gateway.online.session import OnlineSession
    from agentrl_core.rollout.episode_gateway import EpisodeGateway
    from agentrl_core.types import Record, Task


class OnlineAgents(EpisodeSource):
    """Offers the slots of a run to agents that open sessions by themselves."""

    brings_tasks = True

    def __init__(self, gateway: Gateway, config: RolloutConfig, gateway_config: GatewayConfig) -> None:
        self._gateway = gateway
        self._config = config.agent
        self._ttl_s = gateway_config.session_ttl_s
        self._first: dict[str, Lease] = {}
        """Group -> the slot that its first agent took, for groups whose task that agent chose."""
        self._unplanned: set[str] = set()
        """Groups whose task their first agent chose."""
        gateway.leases.training = True

    @contextlib.asynccontextmanager
    async def group(self, group_id: str, task: Task | None) -> AsyncIterator[Task]:
        """Without a task, wait for the next agent and yield its task; the other slots are reserved for that task."""
        if task is not None:
            yield task
            return
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
    async def seat(self, task: Task, record: Record) -> AsyncIterator[Seat]:
        """Offer a slot of a group, and wait for the agent that takes it.

        Waits without a limit, because nothing expires while no agent works. But in a group that an agent has begun,
        raises `SlotNotTaken` if no other agent takes the slot within `rollout.agent.lease_timeout_s`.
        """
        first = self._first.pop(record.group_id, None)
        if first is not None:
            yield _OnlineSeat(first, self._gateway, self._config, self._ttl_s)
            return
        # The first agent of such a group chose the task. Agents that work on other tasks must not get its other slots.
        reserved = record.group_id in self._unplanned
        with self._gateway.leases.offer(task, is_eval=record.is_eval, reserved=reserved) as lease:
            try:
                async with asyncio.timeout(self._config.lease_timeout_s if reserved else None):
                    await _taken(lease)
            except TimeoutError:
                # An agent may have taken the slot at the moment of the timeout: then the slot is its own.
                if not lease.claimed.done():
                    raise SlotNotTaken from None
            yield _OnlineSeat(lease, self._gateway, self._config, self._ttl_s)


@attrs.frozen
class _OnlineSeat(Seat):
    """Slot that an agent has taken: opens the agent's session, and waits for its reward."""

    lease: Lease
    own_gateway: Gateway
    """Gateway at which the agent waits: in this process, unlike some of those that other seats get."""
    config: AgentConfig
    ttl_s: float
    """Time without a call after which the agent counts as gone, in seconds; 0: no limit."""

    async def open_session(
        self,
        gateway: EpisodeGateway[Any],  # noqa: ARG002 - the gateway at which the agent waits
        record: Record,
        *,
        seed_key: tuple[int, ...],
        sampling: SamplingConfig | None,
    ) -> Session:
        """Open the session of the agent that took the slot, and answer the agent's request with it."""
        lease = self.lease
        try:
            session = await self.own_gateway.open_online_session(
                record, lease.claimed.result(), seed_key=seed_key, sampling=sampling
            )
        except RequestError as refusal:
            # The key that the agent chose was taken meanwhile. The agent is told so, and its slot is lost.
            lease.opened.set_exception(refusal)
            raise EpisodeError("no_session", str(refusal)) from refusal
        lease.opened.set_result(session)
        return session

    async def run(self, episode: OpenEpisode) -> AgentResult:
        """Wait until the agent has ended its session and posted its reward."""
        session, reward_timeout_s = episode.session, self.config.reward_timeout_s
        if not isinstance(session, Session) or session.online is None:
            raise TypeError("the session was not opened by an agent from elsewhere")
        online = session.online
        bound = await until_over(session, online, ttl_s=self.ttl_s, limit_s=episode.timeout_s)
        if bound:
            return AgentResult(
                timed_out=True, detail=f"the agent left its session {bound}; it must POST /rl/end_session"
            )
        last = last_call(session)
        if last is None or (episode.task.scorer is not None and not online.rewards):
            # There is nothing to reward, or the task's scorer gives the reward.
            return AgentResult()
        end = time.monotonic() + reward_timeout_s
        if not await online.until(lambda: bool(online.rewards), timeout_s=reward_timeout_s):
            return AgentResult(
                error=EpisodeError(
                    "no_reward",
                    f"no reward came within rollout.agent.reward_timeout_s = {reward_timeout_s:g} s after the "
                    "session's end; POST /rl/set_reward before the end of the session, or soon after",
                )
            )
        await self._more_rewards(online, session, end)
        return AgentResult(value=_reward(online.settle(session), last.id))

    async def _more_rewards(self, online: OnlineSession, session: Session, end: float) -> None:
        """Wait for the rewards of single calls, which come one by one, until all are there or none came for a while."""
        came = True
        while came and not online.has_all_rewards(session):
            seen = online.num_rewards
            patience_s = min(self.config.reward_grace_s, end - time.monotonic())
            came = await online.until(lambda: online.num_rewards != seen, timeout_s=patience_s)  # noqa: B023  (awaited within the iteration)


async def _taken(lease: Lease) -> None:
    # Shielded: cancelling this wait would cancel the lease's future, and no agent could take the slot any more.
    await asyncio.shield(asyncio.wrap_future(lease.claimed))


def _reward(rewards: Mapping[str, float], last: str) -> float | dict[str, float]:
    """Return the rewards; a single one, of the last call, counts as that of the whole record."""
    return rewards[last] if set(rewards) == {last} else dict(rewards)
