"""What code inside an episode can ask about it, however deep in an agent it runs.

    from agentrl_core import workflow_context

    class MathAgent:
        async def run(self, data):
            here = workflow_context.get()
            client = AsyncOpenAI(base_url=here.base_url, api_key=here.api_key, http_client=here.http_client)

Follows the episode through tasks and threads that copy their context (`asyncio.create_task`,
`asyncio.to_thread`), so an agent object that many episodes share finds its own record in each of them.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    import httpx2


@attrs.frozen(kw_only=True)
class WorkflowContext:
    """The episode that the calling code belongs to."""

    is_eval: bool
    """True while a held-out task is evaluated: nothing of this episode is trained on."""
    record_id: str
    task_id: str
    sample_index: int
    """Position in its group, 0-based."""
    base_url: str = attrs.field(repr=False)
    """Where this episode's LLM calls go; ends without /v1, and leads to no other episode."""
    api_key: str = attrs.field(repr=False)
    http_client: httpx2.AsyncClient = attrs.field(repr=False)
    """Shared by all episodes; closing it closes nothing."""


_current: ContextVar[WorkflowContext] = ContextVar("agentrl_workflow_context")


def get() -> WorkflowContext:
    """Return the current episode; `LookupError` outside of one."""
    try:
        return _current.get()
    except LookupError:
        raise LookupError(
            "workflow_context was asked outside an episode: it is known inside a workflow's `run`, in the tasks it "
            "creates and in threads started by asyncio.to_thread; a thread of one's own needs "
            "contextvars.copy_context().run(…)"
        ) from None


def get_httpx_client() -> httpx2.AsyncClient:
    """Return the HTTP client that all episodes share; `LookupError` outside an episode."""
    return get().http_client


def enter(context: WorkflowContext) -> Token[WorkflowContext]:
    """Make `context` the current episode of the running `contextvars.Context`."""
    return _current.set(context)
