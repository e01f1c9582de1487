"""The gateway as the rest of agentrl sees it: sessions in, LLM calls answered, interactions out."""

from __future__ import annotations

import functools
import logging
import threading
from typing import TYPE_CHECKING

import attrs

from agentrl_core.chat.probe import Stability
from agentrl_core.errors import RunError
from agentrl_core.gateway.forwarding import Forwarder
from agentrl_core.gateway.http import Api
from agentrl_core.gateway.metering import metered, metered_stream
from agentrl_core.gateway.sampling import SamplingPolicy
from agentrl_core.gateway.service import PolicyService
from agentrl_core.gateway.sessions import Session, SessionBook
from agentrl_core.gateway.upstreams import Upstreams

if TYPE_CHECKING:
    from agentrl_core.chat.facade import Chat
    from agentrl_core.config.schema import GatewayConfig, SamplingConfig
    from agentrl_core.engines.base import Engine
    from agentrl_core.gateway.server import GatewayServer
    from agentrl_core.gateway.transport import SharedClient
    from agentrl_core.gateway.web import HttpRequest, HttpResponse
    from agentrl_core.stores.base import Store
    from agentrl_core.types import Interaction, Record

_logger = logging.getLogger(__name__)


class Gateway:
    """The HTTP front of one policy; thread-safe."""

    def __init__(
        self,
        *,
        engine: Engine,
        chat: Chat,
        store: Store,
        run_id: str,
        sampling: SamplingConfig,
        config: GatewayConfig,
        seed: int,
    ) -> None:
        self._chat = chat
        self._sampling = sampling
        self._config = config
        self._sessions = SessionBook()
        self._service = PolicyService(
            engine=engine,
            chat=chat,
            store=store,
            run_id=run_id,
            history=config.history,
            seed=seed,
            add_cpu=self._add_cpu,
        )
        self._upstreams = Upstreams(config.upstreams)
        self._forwarder = Forwarder(upstreams=self._upstreams, store=store, run_id=run_id)
        self._api = Api(self._sessions, self._service, self._forwarder)
        self._server: GatewayServer | None = None
        self._cpu_lock = threading.Lock()
        self._cpu_seconds = 0.0

    @property
    def url(self) -> str:
        """Where it listens, without a path; `RunError` before `start`."""
        if self._server is None:
            raise RunError("gateway: not started; call start() first")
        return self._server.url

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds spent on requests so far, the engine's and the HTTP server's own not counted."""
        return self._cpu_seconds

    @property
    def calls(self) -> int:
        """LLM calls finished and stored so far."""
        return self._service.calls

    @property
    def forced_temperatures(self) -> int:
        """Calls so far that asked for another temperature and got the policy's."""
        return self._service.forced_temperatures

    @property
    def fatal(self) -> RunError | None:
        """What ended the engine or the store, if anything did: agents that fail because of it are not at fault."""
        return self._api.fatal

    @functools.cached_property
    def http_client(self) -> SharedClient:
        """The client that agents borrow: it reaches the gateway in process, and closing it does nothing."""
        from agentrl_core.gateway.transport import SharedClient

        return SharedClient(self.handle, self.url)

    def start(self) -> None:
        """Listen; `RunError` if the port is in use."""
        from agentrl_core.gateway.server import GatewayServer

        server = GatewayServer(self.handle, self._api.refuse_early, host=self._config.host, port=self._config.port)
        server.start()
        self._server = server
        _logger.log(logging.WARNING if self._is_unlike_template else logging.INFO, self.history_notice)

    @property
    def history_notice(self) -> str:
        """What the chat template does with earlier turns, and what that means for serving the policy."""
        verdict = self._chat.verdict
        if self._config.history == "template":
            return f"{verdict}; gateway.history is template: a changed past begins a new sequence"
        if self._is_unlike_template:
            return (
                f"{verdict}; the policy is trained on its turns exactly as it sampled them, so serve it the same way, "
                "or set gateway.history to template"
            )
        return str(verdict)

    @property
    def _is_unlike_template(self) -> bool:
        return self._config.history == "exact" and self._chat.verdict.stability is not Stability.STABLE

    def close(self) -> None:
        """Stop listening; idempotent. The owner of the agents' event loop ends `http_client.close_for_good()`."""
        if self._server is not None:
            self._server.close()

    def open_session(
        self, record: Record, *, seed_key: tuple[int, ...], sampling: SamplingConfig | None = None
    ) -> Session:
        """Let a record make LLM calls.

        Call number k of it is sampled with a seed mixed from the run's seed, `seed_key` and k.
        """
        chosen = sampling or self._sampling
        policy = SamplingPolicy(
            temperature=chosen.temperature,
            max_tokens=chosen.max_tokens,
            training=not record.is_eval,
            other_temperature=self._config.temperature,
            stop_token_ids=self._chat.stop_token_ids,
        )
        return self._sessions.open(record, url=self.url, policy=policy, seed_key=seed_key)

    async def close_session(self, session: Session) -> tuple[Interaction, ...]:
        """End a session: running generations are aborted, later calls refused; its interactions by `seq`."""
        self._sessions.end(session)
        with session.lock:
            session.closed = True
        await self._service.abort_all(session)
        return tuple(sorted(session.interactions, key=lambda interaction: interaction.seq))

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Answer one HTTP request, from a socket or from inside the process."""
        response = await metered(self._api.handle(request), self._add_cpu)
        if isinstance(response.body, bytes):
            return response
        return attrs.evolve(response, body=metered_stream(response.body, self._add_cpu))

    def _add_cpu(self, seconds: float) -> None:
        with self._cpu_lock:
            self._cpu_seconds += seconds
