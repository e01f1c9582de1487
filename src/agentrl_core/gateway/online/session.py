"""Hold the additional state of an online agent's session: open, ended or closed, its rewards, and waiting for both."""

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
"""State of an online session: an ended one takes rewards but no calls, a closed one neither."""


@attrs.define(kw_only=True, eq=False)
class OnlineSession:
    """State that only online sessions have; the session's lock guards the fields that change."""

    task_id: str
    """Task that the agent says it works on."""
    owned: bool
    """Whether training waits for the session; if not, it waits to be exported."""
    opened_at: float
    """Time of opening, in Unix seconds."""
    state: State = "open"
    over: bool = False
    """Whether the session has ended and all its calls are stored or aborted."""
    rewards: dict[str, float] = attrs.field(factory=dict)
    """Rewards by interaction id."""
    num_rewards: int = 0
    """Number of rewards received, including those that replaced an earlier one."""
    final: bool = False
    """Whether the latest reward said that no more rewards follow."""
    whole_for: str = ""
    """Id of the call that was the last one when a reward for the whole session came; empty if none came."""
    _changed: Wakeups = attrs.field(factory=Wakeups, init=False)

    def wake(self) -> None:
        """Wake the tasks in `until`, so that they check their condition again."""
        self._changed.wake()

    def settle(self, session: Session) -> dict[str, float]:
        """Close the session and return its rewards; later rewards are refused with 410."""
        with session.lock:
            self.state = "closed"
            return dict(self.rewards)

    def has_all_rewards(self, session: Session) -> bool:
        """Whether an ended session needs to wait for no more rewards.

        True if a reward was `final`, if the whole session was rewarded after its last call, or if each call has one.
        """
        if self.final:
            return True
        with session.lock:
            calls = {item.id for item in session.interactions if item.trainable and item.is_agents}
            last = last_call(session)
            return calls <= self.rewards.keys() or (last is not None and self.whole_for == last.id)

    async def until(self, holds: Callable[[], bool], *, timeout_s: float = math.inf) -> bool:
        """Wait until `holds()` is true, checking it after each `wake`; return False after `timeout_s`."""
        end = time.monotonic() + timeout_s
        # Listening begins before the first check, so that no change between the two is missed.
        with self._changed.listen() as changed:
            while not holds():
                left = end - time.monotonic()
                if left <= 0:
                    return False
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), None if math.isinf(left) else left)
                changed.clear()
        return True


async def until_over(session: Session, online: OnlineSession, *, ttl_s: float, limit_s: float = math.inf) -> str:
    """Wait until the agent ends its session and return an empty text, else the bound that was reached first.

    The bounds are `ttl_s` without a call (0: none; a running generation counts as a call) and `limit_s` in all.
    """
    end = time.monotonic() + limit_s
    while True:
        now = time.monotonic()
        # A long generation is not idleness: the idle time begins when it ends.
        if session.running:
            session.used_at = now
        idle_end = session.used_at + ttl_s if ttl_s else math.inf
        if now >= min(end, idle_end):
            return f"open for {limit_s:g} s" if now >= end else f"idle for {ttl_s:g} s"
        if await online.until(lambda: online.over, timeout_s=min(end, idle_end) - now):
            return ""


def last_call(session: Session) -> Interaction | None:
    """Return the policy's latest finished call that can be rewarded; None if there is none."""
    calls = [interaction for interaction in session.interactions if interaction.trainable and interaction.is_agents]
    return max(calls, key=lambda interaction: interaction.seq, default=None)
