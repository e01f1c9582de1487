"""Running a user's agent under a time limit, so that whatever it does comes back as a value."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import attrs

T = TypeVar("T")

logger = logging.getLogger(__name__)

GRACE_S = 5.0
"""Time that a cancelled agent has to clean up."""

SIBLING_FAILED = "sibling_failed"
"""What an episode is cancelled with because another one of its group failed; any other was ended with the run."""

_abandoned: set[asyncio.Task[Any]] = set()
"""Agents that ignored their cancellation; kept so that the loop does not lose them."""


@attrs.frozen(kw_only=True)
class Attempt:
    """How the agent's part of an episode ended."""

    value: Any = None
    """What it returned."""
    error: BaseException | None = None
    """What it raised."""
    timed_out: bool = False
    detail: str = ""
    """Which limit was met, where it is not the episode's."""


async def run_agent(
    run: Callable[[], Awaitable[Any]],
    context: contextvars.Context,
    *,
    timeout_s: float,
    grace_s: float = GRACE_S,
    who: str = "an agent",
) -> Attempt:
    """Await `run()` in a task of its own with `context`.

    At the limit, or when the caller is cancelled, the agent is cancelled and has `grace_s` to clean up; one
    that ignores that is left behind, and the log says so of `who`. Never raises what the agent raises.
    """
    agent = asyncio.create_task(_caught(run), context=context)
    try:
        await asyncio.wait({agent}, timeout=timeout_s)
        timed_out = not agent.done()
    finally:
        if not agent.done():
            await _cancel(agent, grace_s, who)
    if timed_out:
        return Attempt(timed_out=True)
    if agent.cancelled():
        return Attempt(error=asyncio.CancelledError(f"{who} cancelled itself"))
    return agent.result()


async def unbroken(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` to its end even if the caller is cancelled meanwhile; the cancellation is raised after it."""
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
    """Return the reason that a cancelled record has."""
    return SIBLING_FAILED if cancellation.args == (SIBLING_FAILED,) else ""


async def _caught(run: Callable[[], Awaitable[Any]]) -> Attempt:
    """Return what the agent raised; its `sys.exit` or KeyboardInterrupt ends the episode, not the process.

    Ctrl-C itself is raised on the main thread, never on that of the agents.
    """
    try:
        return Attempt(value=await run())
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - any failure of an agent is data
        return Attempt(error=error)


async def _cancel(agent: asyncio.Task[Attempt], grace_s: float, who: str) -> None:
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
