"""The current episode, for code inside an agent at any depth: its record, LLM endpoint, HTTP clients and scorer.

    from agentrl_core import workflow_context

    class MathAgent:
        async def run(self, data):
            here = workflow_context.get()
            client = AsyncOpenAI(base_url=here.base_url, api_key=here.api_key, http_client=here.http_client)

The value follows the episode through tasks and threads that copy their context (`asyncio.create_task`,
`asyncio.to_thread`), so an agent object that many episodes share finds its own record in each of them.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Literal, overload

import attrs

from agentrl_core.http import borrowed_clients as borrowed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import aiohttp
    import httpx

    from agentrl_core.api.tools import EpisodeTools
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
    """Address for this episode's LLM calls; ends without /v1, and belongs to no other episode."""
    api_key: str = attrs.field(repr=False)
    http_client: SharedClient = attrs.field(repr=False)
    """HTTP client that all episodes share; its `aclose` does nothing."""
    ask_scorer: Callable[[str, Sequence[Message]], Awaitable[float]] | None = attrs.field(default=None, repr=False)
    """Function that asks the task's scorer; None outside the run's process. Call `score` instead."""
    tools: EpisodeTools | None = attrs.field(default=None, repr=False)
    """The run's tools (the config's section `tools`); None if it lists none."""
    add_mark: Callable[[str], None] | None = attrs.field(default=None, repr=False)
    """Function that marks the record. Call `mark` instead."""

    @property
    def sample_idx(self) -> int:
        """AReaL's name for `sample_index`."""
        return self.sample_index


_current: ContextVar[WorkflowContext] = ContextVar("agentrl_workflow_context")


def get() -> WorkflowContext:
    """Return the current episode; `LookupError` outside of one."""
    try:
        return _current.get()
    except LookupError:
        raise LookupError(
            "workflow_context was used outside an episode: it works inside a workflow's `run`, in the tasks that it "
            "creates and in threads started by asyncio.to_thread; in a thread that you start yourself, call the "
            "function by contextvars.copy_context().run(…)"
        ) from None


@overload
def get_httpx_client(*, legacy: Literal[False] = False) -> SharedClient: ...


@overload
def get_httpx_client(*, legacy: Literal[True]) -> httpx.AsyncClient: ...


def get_httpx_client(*, legacy: bool = False) -> SharedClient | httpx.AsyncClient:
    """Return the HTTP client that all episodes share, an `httpx2.AsyncClient`; it may be awaited, as in AReaL.

    `legacy`: return a client of the old httpx, for SDKs that accept no other; `ImportError` if httpx is not installed.
    Closing either client does nothing. `LookupError` outside an episode.
    """
    here = get()
    return borrowed.legacy_httpx_client() if legacy else here.http_client


async def get_aiohttp_session() -> aiohttp.ClientSession:
    """Return the aiohttp session that all episodes share; closing it does nothing.

    `LookupError` outside an episode.
    """
    get()
    return borrowed.aiohttp_session()


def stat_scope() -> str:
    """Return AReaL's name for the set of the episode's statistics: `eval-rollout`, or `rollout` while training."""
    return "eval-rollout" if get().is_eval else "rollout"


async def score(reply: str, messages: Sequence[Message] = ()) -> float:
    """Ask the task's scorer about a reply as if it were the last one, to give feedback during the episode.

    Nothing of it is stored: the record's reward is what the workflow returns. `EpisodeError` (`no_score`) if the scorer
    has no score, `LookupError` outside an episode or in a worker process.
    """
    ask_scorer = get().ask_scorer
    if ask_scorer is None:
        raise LookupError(
            "the task's scorer can be asked in the run's own process only: use rollout.agent.mode: inline"
        )
    return await ask_scorer(reply, messages)


def mark(word: str) -> None:
    """Mark the current record with a short stable word, such as `format_error`; a repeated word changes nothing.

    `LookupError` outside an episode, `ValueError` if `word` is no lower-case word of at most 40 characters.
    """
    add_mark = get().add_mark
    if add_mark is not None:
        add_mark(word)


def enter(context: WorkflowContext) -> Token[WorkflowContext]:
    """Make `context` the current episode of the running `contextvars.Context`."""
    return _current.set(context)
