"""Run an agent or a scorer under a time limit; return its result or error, even if it ignores its cancellation."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import attrs

from agentrl_core.types import BY_USER

T = TypeVar("T")

logger = logging.getLogger(__name__)

GRACE_S = 5.0
"""Seconds that a cancelled agent has to clean up."""

SIBLING_FAILED = "sibling_failed"
"""Cancellation message, and reason, of an episode that is cancelled because another one of its group failed. Without
it, an episode was cancelled because the run ended."""

_abandoned: set[asyncio.Task[Any]] = set()
"""Agents that ignored their cancellation. Event loops hold tasks weakly, so something must keep them alive."""


@attrs.frozen(kw_only=True)
class AgentResult:
    """Result of the agent's part of an episode."""

    value: Any = None
    """Return value of the workflow."""
    error: BaseException | None = None
    """Exception that the workflow raised."""
    timed_out: bool = False
    detail: str = ""
    """Name of the limit that was exceeded, if it is not the episode's own."""


async def run_agent(
    run: Callable[[], Awaitable[Any]],
    context: contextvars.Context,
    *,
    timeout_s: float,
    grace_s: float = GRACE_S,
    who: str = "an agent",
) -> AgentResult:
    """Await `run()`, a call of an agent or of a scorer, in a new task with `context`.

    At the time limit, or when the caller is cancelled, the agent is cancelled and has `grace_s` to clean up. An agent
    that ignores the cancellation is left running, and the log names it by `who`. Never raises what the agent raises.
    """
    agent = asyncio.create_task(_caught(run), context=context)
    try:
        # Not `asyncio.wait_for`: after its timeout it waits without a limit for the cancelled task to end.
        await asyncio.wait({agent}, timeout=timeout_s)
        timed_out = not agent.done()
    finally:
        if not agent.done():
            await _cancel(agent, grace_s, who)
    if timed_out:
        return AgentResult(timed_out=True)
    if agent.cancelled():
        return AgentResult(error=asyncio.CancelledError(f"{who} cancelled itself"))
    return agent.result()


async def unbroken(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` to its end even if the caller is cancelled meanwhile; raise the cancellation afterwards."""
    task = asyncio.create_task(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancellation = error
    result = task.result()
    if cancellation is not None:
        raise cancellation
    return result


def cancelled_for(cancellation: asyncio.CancelledError) -> str:
    """Return the reason that the record of a cancelled episode gets."""
    return next((reason for reason in (SIBLING_FAILED, BY_USER) if cancellation.args == (reason,)), "")


async def _caught(run: Callable[[], Awaitable[Any]]) -> AgentResult:
    """Return the agent's result or exception as a value.

    `sys.exit` or KeyboardInterrupt in an agent ends its episode, not the process. A real Ctrl-C is raised on the main
    thread, never on the agents' thread.
    """
    try:
        return AgentResult(value=await run())
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - any failure of an agent is data
        return AgentResult(error=error)


async def _cancel(agent: asyncio.Task[AgentResult], grace_s: float, who: str) -> None:
    agent.cancel()
    _abandoned.add(agent)
    agent.add_done_callback(_abandoned.discard)
    await asyncio.wait({agent}, timeout=grace_s)
    if not agent.done():
        logger.warning(
            "%s went on for %g s after it was cancelled and is left behind: it catches asyncio.CancelledError "
            "or BaseException without raising it again",
            who,
            grace_s,
        )
