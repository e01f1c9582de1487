"""Counterpart of `areal.infra.workflow_context`; the same names as in `agentrl_areal.workflow_context`."""

from agentrl_areal.workflow_context import (
    WorkflowContext,
    get,
    get_aiohttp_session,
    get_httpx_client,
    set,  # noqa: A004 (AReaL's name)
    stat_scope,
)

__all__ = ["WorkflowContext", "get", "get_aiohttp_session", "get_httpx_client", "set", "stat_scope"]
