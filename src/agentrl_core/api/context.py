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
from typing import TYPE_CHECKING, Literal, overload

import attrs

from agentrl_core.http import borrowed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import aiohttp
    import httpx

    from agentrl_core.http.shared_client import SharedClient
    from agentrl_core.types import Message


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
    http_client: SharedClient = attrs.field(repr=False)
    """Shared by all episodes; closing it closes nothing."""
    judge: Callable[[str, Sequence[Message]], Awaitable[float]] | None = attrs.field(default=None, repr=False)
    """Asks the task's scorer, see `score`."""

    @property
    def sample_idx(self) -> int:
        """AReaL's name of `sample_index`."""
        return self.sample_index


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


@overload
def get_httpx_client(*, legacy: Literal[False] = False) -> SharedClient: ...


@overload
def get_httpx_client(*, legacy: Literal[True]) -> httpx.AsyncClient: ...


def get_httpx_client(*, legacy: bool = False) -> SharedClient | httpx.AsyncClient:
    """Return the HTTP client that all episodes share, an `httpx2.AsyncClient`; `await` before it changes nothing.

    `legacy`: one of the old httpx, for SDKs that know no other; `ImportError` where that is not installed. Closing
    either closes nothing. `LookupError` outside an episode.
    """
    here = get()
    return borrowed.legacy_httpx_client() if legacy else here.http_client


async def get_aiohttp_session() -> aiohttp.ClientSession:
    """Return the session of aiohttp that all episodes share; closing it closes nothing.

    `LookupError` outside an episode.
    """
    get()
    return borrowed.aiohttp_session()


def stat_scope() -> str:
    """Return what numbers of this episode belong to: `eval-rollout`, or `rollout` while training."""
    return "eval-rollout" if get().is_eval else "rollout"


async def score(reply: str, messages: Sequence[Message] = ()) -> float:
    """Ask the task's scorer about a reply as if it were the last one, to give feedback while the episode goes on.

    Nothing of it is stored: the record's reward is what the workflow returns. `EpisodeError` (`no_score`) where the
    scorer has none to give, `LookupError` outside an episode or in another process than the run's.
    """
    judge = get().judge
    if judge is None:
        raise LookupError("the task's scorer is in the process of the run: use rollout.agent.mode inline")
    return await judge(reply, messages)


def enter(context: WorkflowContext) -> Token[WorkflowContext]:
    """Make `context` the current episode of the running `contextvars.Context`."""
    return _current.set(context)
