"""The gateway as the rest of agentrl sees it: sessions in, LLM calls answered, interactions out."""

from __future__ import annotations

import functools
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.chat.probe import Stability
from agentrl_core.errors import RunError
from agentrl_core.gateway.forwarding import Forwarder
from agentrl_core.gateway.large import LargeRequests
from agentrl_core.gateway.metering import MeteredStream, metered
from agentrl_core.gateway.online.admin import Admin, exposed
from agentrl_core.gateway.online.control import Control
from agentrl_core.gateway.online.leases import Leases
from agentrl_core.gateway.online.visits import Visits
from agentrl_core.gateway.pausing import Gate
from agentrl_core.gateway.quotas import Quotas
from agentrl_core.gateway.sampling import SamplingPolicy
from agentrl_core.gateway.service import PolicyService
from agentrl_core.gateway.serving.routes import Api
from agentrl_core.gateway.sessions import Session, SessionBook
from agentrl_core.gateway.upstreams import Upstreams

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentrl_core.api.engines import Engine
    from agentrl_core.api.stores import Store
    from agentrl_core.chat.facade import Chat
    from agentrl_core.config.schema import GatewayConfig, SamplingConfig
    from agentrl_core.gateway.exchange import ChatRequest, Reply
    from agentrl_core.gateway.online.leases import Claim
    from agentrl_core.gateway.serving.server import GatewayServer
    from agentrl_core.gateway.serving.transport import InProcessClient
    from agentrl_core.gateway.serving.web import HttpRequest, HttpResponse
    from agentrl_core.types import Interaction, Record


class Gateway:
    """The HTTP front of one policy; thread-safe.

    Who has `admin_key` may open sessions over HTTP; without a key nobody may.
    """

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
        admin_key: str | None = None,
    ) -> None:
        self._chat = chat
        self._sampling = sampling
        self._config = config
        self.max_tokens = sampling.max_tokens or _most_tokens(engine.context_length, least=sampling.min_tokens)
        """Of a reply to a call that names no limit."""
        self._sessions = SessionBook(url_tokens=config.url_tokens)
        self._service = PolicyService(
            engine=engine,
            chat=chat,
            store=store,
            run_id=run_id,
            history=config.history,
            most_replies=config.max_replies_per_call,
            unseen_tools=config.unseen_tools,
            seed=seed,
            add_cpu=self._add_cpu,
        )
        self._upstreams = Upstreams(config.upstreams)
        self._forwarder = Forwarder(upstreams=self._upstreams, store=store, run_id=run_id)
        self.leases = Leases()
        """Slots that wait for agents from elsewhere."""
        self._gate = Gate(timeout_s=config.pause_timeout_s)
        self._visits = Visits(
            sessions=self._sessions,
            service=self._service,
            store=store,
            run_id=run_id,
            policy=self._policy,
            ttl_s=config.session_ttl_s,
        )
        admin = Admin(admin_key)
        control = Control(
            admin=admin,
            sessions=self._sessions,
            visits=self._visits,
            leases=self.leases,
            url=lambda: self.url,
            public_url=config.public_url,
            version=lambda: engine.version,
        )
        self._large = LargeRequests(self._add_cpu)
        self._api = Api(
            self._sessions,
            self._service,
            self._forwarder,
            self._large,
            admin=admin,
            pages=control.pages(),
            before=self._before,
            quotas=Quotas(replies=config.max_session_replies, calls_per_minute=config.max_session_calls_per_minute),
        )
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
    def chat(self) -> Chat:
        """Everything between messages and the policy's token ids."""
        return self._chat

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
    def without_effect(self) -> Mapping[str, int]:
        """Calls so far that asked for a sampling parameter in vain, by its name."""
        return self._service.without_effect

    @property
    def calls_with_unseen_tools(self) -> int:
        """Calls so far whose tools the chat template left out of the prompt."""
        return self._service.calls_with_unseen_tools

    @property
    def tools_notice(self) -> str:
        """Notice about tools that the chat template has no place for; empty where it shows them."""
        if self._chat.takes_tools:
            return ""
        effect = {
            "refuse": "calls that offer tools are refused",
            "allow": "calls that offer tools are answered without",
        }[self._config.unseen_tools]
        return (
            "this chat template drops tools: the policy will never see them, so "
            f"{effect} (gateway.unseen_tools: {self._config.unseen_tools})"
        )

    @property
    def fatal(self) -> RunError | None:
        """What ended the engine or the store, if anything did: agents that fail because of it are not at fault."""
        return self._api.fatal

    @functools.cached_property
    def http_client(self) -> InProcessClient:
        """The client that agents borrow: it reaches the gateway in process, and closing it does nothing."""
        from agentrl_core.gateway.serving.transport import InProcessClient

        return InProcessClient(self.handle, self.url)

    def start(self) -> None:
        """Listen; `RunError` if the port is in use, or others could reach it and no admin key was chosen."""
        from agentrl_core.gateway.serving.server import GatewayServer

        if problem := exposed(self._config.host, self._config.admin_key_env):
            raise RunError(f"gateway.host: {problem}")
        server = GatewayServer(self.handle, self._api.refuse_early, host=self._config.host, port=self._config.port)
        server.start()
        self._server = server

    @property
    def history_notice(self) -> str:
        """What the chat template does with earlier turns, and what that means for serving the policy."""
        verdict = self._chat.verdict
        if self._config.history == "template":
            return f"{verdict}; gateway.history is template: a changed past starts a new training sequence"
        if self._is_unlike_template:
            return (
                f"{verdict}. Training keeps what was sampled; when you serve the model, keep it too, or set "
                "gateway.history: template"
            )
        return str(verdict)

    @property
    def _is_unlike_template(self) -> bool:
        return self._config.history == "exact" and self._chat.verdict.stability is not Stability.STABLE

    def close(self) -> None:
        """Stop listening; idempotent. The owner of the agents' event loop ends `http_client.close_for_good()`."""
        if self._server is not None:
            self._server.close()
        self._large.close()
        self._upstreams.close()

    def open_session(
        self, record: Record, *, seed_key: tuple[int, ...], sampling: SamplingConfig | None = None
    ) -> Session:
        """Let a record make LLM calls.

        Call number k of it is sampled with a seed mixed from the run's seed, `seed_key` and k.
        """
        policy = self._policy_of(record, sampling)
        return self._sessions.open(record, url=self.url, policy=policy, seed_key=seed_key)

    async def open_visit(
        self, record: Record, claim: Claim, *, seed_key: tuple[int, ...], sampling: SamplingConfig | None = None
    ) -> Session:
        """Let an agent from elsewhere make the calls of a record; its session outlives this process.

        `RequestError` (409) where the agent's own key is in use.
        """
        policy = self._policy_of(record, sampling)
        return await self._visits.open(record, claim, url=self.url, policy=policy, seed_key=seed_key, owned=True)

    async def restore_sessions(self) -> int:
        """Go on with the sessions that agents from elsewhere have in the store, of this run; how many are open."""
        return await self._visits.restore()

    def pause(self, session: Session | None = None) -> None:
        """Let new calls wait, of one session or of all; what is being generated goes on. Pausing twice is once."""
        self._gate.close(session)

    def resume(self, session: Session | None = None) -> None:
        """Let the calls go on that `pause` with the same argument holds back."""
        self._gate.open(session)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let new calls wait while the context lasts."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    async def close_session(self, session: Session) -> tuple[Interaction, ...]:
        """End a session: running generations are aborted, later calls refused; its interactions by `seq`."""
        self.resume(session)
        if session.visit is not None:
            await self._visits.close(session)
            return tuple(sorted(session.interactions, key=lambda interaction: interaction.seq))
        self._sessions.end(session)
        with session.lock:
            session.closed = True
        await self._service.abort_all(session)
        return tuple(sorted(session.interactions, key=lambda interaction: interaction.seq))

    def _policy_of(self, record: Record, sampling: SamplingConfig | None) -> SamplingPolicy:
        chosen = sampling or self._sampling
        max_tokens = chosen.max_tokens or self.max_tokens
        return self._policy(temperature=chosen.temperature, max_tokens=max_tokens, training=not record.is_eval)

    def _policy(self, **kept: Any) -> SamplingPolicy:
        """Make the rules of a session: those of training but for what is `kept` of others."""
        training = {
            "temperature": self._sampling.temperature,
            "max_tokens": self.max_tokens,
            "training": True,
        }
        return SamplingPolicy(
            **{**training, **kept},
            other_temperature=self._config.temperature,
            stop_token_ids=self._chat.stop_token_ids,
            min_tokens=self._sampling.min_tokens,
            stop=self._sampling.stop,
            more_stop_token_ids=self._sampling.stop_token_ids,
            ignore_eos=self._sampling.ignore_eos,
        )

    async def _before(self, session: Session) -> None:
        """What a call waits for."""
        if session.forgotten:
            await self._visits.load(session)
        await self._gate.passed(session)

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Answer one HTTP request, from a socket or from inside the process."""
        response = await metered(self._api.handle(request), self._add_cpu)
        if isinstance(response.body, bytes):
            return response
        return attrs.evolve(response, body=MeteredStream(response.body, self._add_cpu))

    async def ask(self, session: Session, request: ChatRequest, id_prefix: str) -> Reply:
        """Do a session's call without HTTP; `RequestError` where it is refused or fails."""
        return await metered(self._api.ask(session, request, id_prefix), self._add_cpu)

    def _add_cpu(self, seconds: float) -> None:
        with self._cpu_lock:
            self._cpu_seconds += seconds


_MOST_TOKENS = 1024
"""Of a reply where neither the agent nor the config names a limit: one that never ends must not fill the context."""


def _most_tokens(context_length: int, *, least: int) -> int:
    """Return the limit of a reply that nobody set: half of the context, to leave room for the prompt."""
    return max(min(_MOST_TOKENS, context_length // 2), least, 1)
