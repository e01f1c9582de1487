"""Protocol of the gateway that episodes need, whether it runs in this process or in others.

`gateway.Gateway` serves the episodes of its own process; `rollout.remote.RemoteGateway` passes them on to serving
members of the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import httpx2

    from agentrl_core.chat.facade import Chat
    from agentrl_core.config.sampling_sections import SamplingConfig
    from agentrl_core.errors import RunError, ServerLostError
    from agentrl_core.gateway.call_types import ChatRequest, Reply
    from agentrl_core.types import Interaction, Record

T = TypeVar("T")


class EpisodeSession(Protocol):
    """Open session of one record, as its episode sees it."""

    @property
    def record_id(self) -> str:
        """Id of the record."""
        ...

    @property
    def base_url(self) -> str:
        """URL for the agent, without `/v1`; contains `token`."""
        ...

    @property
    def api_key(self) -> str:
        """Secret key of the session."""
        ...

    @property
    def token(self) -> str:
        """Secret in the URL."""
        ...

    @property
    def refusal(self) -> str:
        """HTTP status, code and message of the last call that was refused, known once the session is closed.

        Empty if none was refused.
        """
        ...


S = TypeVar("S", bound=EpisodeSession)


class EpisodeGateway(Protocol[S]):
    """Gateway as episodes use it, on the agents' event loop. It gets back only sessions that it opened itself."""

    @property
    def fatal(self) -> RunError | None:
        """Error that ended the engine or the store; None while both work."""
        ...

    @property
    def chat(self) -> Chat:
        """Chat template and tokenizer of the policy."""
        ...

    @property
    def takes_images(self) -> bool:
        """Whether the policy's chat template takes images."""
        ...

    @property
    def http_client(self) -> httpx2.AsyncClient:
        """Shared HTTP client for agents; closing it does nothing."""
        ...

    async def open_session(
        self, record: Record, *, seed_key: tuple[int, ...], sampling: SamplingConfig | None = None
    ) -> S:
        """Open the session of a record; waits for a server if there is none, and then raises `RunError`."""
        ...

    async def attend(self, session: S, work: Coroutine[Any, Any, T]) -> T:
        """Await the agent's work, but raise `ServerLostError` as soon as the session's server is known to be gone."""
        ...

    async def ask(self, session: S, request: ChatRequest, id_prefix: str) -> Reply:
        """Answer a session's call that comes as Python values; `RequestError` if it is refused or fails."""
        ...

    async def close_session(self, session: S) -> tuple[Interaction, ...]:
        """End a session, abort its running generations, and return its interactions, ordered by `seq`.

        `ServerLostError` if its server is gone; what the server stored is in the store.
        """
        ...

    def fault_of(self, session: S) -> ServerLostError | None:
        """Return an error if a call of the session failed on the way to its server; its agent is then not to blame."""
        ...
