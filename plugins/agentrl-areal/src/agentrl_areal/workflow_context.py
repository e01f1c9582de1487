"""Counterpart of `areal.infra.workflow_context`: the episode of the calling code, with defaults outside of one."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

import attrs

from agentrl_core import workflow_context as episodes

if TYPE_CHECKING:
    import aiohttp

    from agentrl_core.api.context import WorkflowContext as Episode
    from agentrl_core.api.http import SharedClient

__all__ = ["WorkflowContext", "get", "get_aiohttp_session", "get_httpx_client", "set", "stat_scope"]


@attrs.frozen
class WorkflowContext:
    """Context that `get` returns outside an episode, and that `set` accepts."""

    is_eval: bool = False
    task_id: str | int | None = None


_given: ContextVar[WorkflowContext | None] = ContextVar("agentrl_areal_workflow_context", default=None)


def set(ctx: WorkflowContext) -> None:  # noqa: A001 (AReaL's name)
    """Make `get` return `ctx` in this context, even inside an episode."""
    _given.set(ctx)


def get() -> WorkflowContext | Episode:
    """Return the current episode, with `is_eval`, `task_id` and `sample_idx`; outside an episode, a default context."""
    given = _given.get()
    if given is not None:
        return given
    try:
        return episodes.get()
    except LookupError:
        return WorkflowContext()


def stat_scope() -> str:
    """Return the name of the tracker for this episode's numbers: `eval-rollout` or `rollout`."""
    return "eval-rollout" if get().is_eval else "rollout"


async def get_httpx_client() -> SharedClient:
    """Return the HTTP client that all episodes share. Raises `LookupError` outside an episode."""
    return episodes.get_httpx_client()


async def get_aiohttp_session() -> aiohttp.ClientSession:
    """Return the aiohttp session that all episodes share. Raises `LookupError` outside an episode."""
    return await episodes.get_aiohttp_session()
