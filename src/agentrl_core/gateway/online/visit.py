"""What a session has beyond others when an agent from elsewhere opened it: its state, its rewards, who waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from agentrl_core.concurrency.wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrl_core.gateway.sessions import Session
    from agentrl_core.types import Interaction

State: TypeAlias = Literal["open", "ended", "closed"]
"""An ended session takes no more calls, but rewards; a closed one nothing."""


@attrs.define(kw_only=True, eq=False)
class Visit:
    """An outside agent's stay. The session's lock guards what changes."""

    task_id: str
    """What the agent says it works on."""
    owned: bool
    """Whether training waits for it; otherwise it waits to be exported."""
    opened_at: float
    """Unix seconds."""
    state: State = "open"
    over: bool = False
    """Whether all its calls are finished and stored, or aborted."""
    rewards: dict[str, float] = attrs.field(factory=dict)
    """Interaction id -> reward."""
    num_rewards: int = 0
    """Rewards that came, those that replaced another one too."""
    final: bool = False
    """Whether whoever rewards the session has said that no more rewards follow."""
    whole_for: str = ""
    """Id of the call that was the last one when a reward for the whole session came."""
    _changed: Wakeups = attrs.field(factory=Wakeups, init=False)

    def wake(self) -> None:
        """Let those look again who wait for a change."""
        self._changed.wake()

    def settle(self, session: Session) -> dict[str, float]:
        """Take the rewards: those who send another one are told that it comes too late."""
        with session.lock:
            self.state = "closed"
            return dict(self.rewards)

    def has_all_rewards(self, session: Session) -> bool:
        """Whether no reward of an ended session is to be waited for.

        That is so once it was said, once the whole session was rewarded behind its last call, and once each call was.
        """
        if self.final:
            return True
        with session.lock:
            calls = {interaction.id for interaction in session.interactions if interaction.trainable}
            last = last_call(session)
            return calls <= self.rewards.keys() or (last is not None and self.whole_for == last.id)

    async def until(self, holds: Callable[[], bool], *, timeout_s: float = math.inf) -> bool:
        """Wait until `holds()`, which is asked after each change; False after `timeout_s`."""
        end = time.monotonic() + timeout_s
        with self._changed.listen() as changed:
            while not holds():
                left = end - time.monotonic()
                if left <= 0:
                    return False
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), None if math.isinf(left) else left)
                changed.clear()
        return True


async def until_over(session: Session, visit: Visit, *, ttl_s: float, limit_s: float = math.inf) -> str:
    """Wait until the agent ends its session; else say which bound was met first: idle for `ttl_s`, open for `limit_s`.

    `ttl_s` 0 is no bound. A session with a call in the engine is not idle.
    """
    end = time.monotonic() + limit_s
    while True:
        now = time.monotonic()
        if session.running:
            session.used_at = now
        idle_end = session.used_at + ttl_s if ttl_s else math.inf
        if now >= min(end, idle_end):
            return f"open for {limit_s:g} s" if now >= end else f"idle for {ttl_s:g} s"
        if await visit.until(lambda: visit.over, timeout_s=min(end, idle_end) - now):
            return ""


def last_call(session: Session) -> Interaction | None:
    """Return the policy's latest finished call that can be rewarded."""
    calls = [interaction for interaction in session.interactions if interaction.trainable]
    return max(calls, key=lambda interaction: interaction.seq, default=None)
