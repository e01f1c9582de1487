"""Build the gateway from its parts, and let the run start it, open and close sessions, pause it and read its counts.

LLM calls do not pass through here: the package's docstring lists the modules that they pass through.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl_core.chat.template_check import Stability
from agentrl_core.errors import RunError
from agentrl_core.gateway.admission import Admission
from agentrl_core.gateway.answering import Answerer
from agentrl_core.gateway.compaction import Compactor
from agentrl_core.gateway.large_requests import LargeRequests
from agentrl_core.gateway.members.routes import MemberControl
from agentrl_core.gateway.members.sessions import MemberSessions
from agentrl_core.gateway.metering import CpuMeter
from agentrl_core.gateway.online.admin import Admin, exposed
from agentrl_core.gateway.online.leases import Leases
from agentrl_core.gateway.online.routes import Control
from agentrl_core.gateway.online.sessions import OnlineSessions
from agentrl_core.gateway.policy_calls import PolicyCalls
from agentrl_core.gateway.recording import Recorder
from agentrl_core.gateway.sampling_parameters import SamplingPolicy
from agentrl_core.gateway.serving.routes import Router
from agentrl_core.gateway.sessions import Session, SessionBook
from agentrl_core.gateway.upstream_calls import UpstreamCalls
from agentrl_core.gateway.upstreams import Upstreams

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping

    from agentrl_core.api.engines import Engine
    from agentrl_core.api.stores import Store
    from agentrl_core.chat.facade import Chat
    from agentrl_core.config.sampling_sections import GatewayConfig, SamplingConfig
    from agentrl_core.errors import ServerLostError
    from agentrl_core.gateway.call_types import ChatRequest, Reply
    from agentrl_core.gateway.compaction import NamedPolicy
    from agentrl_core.gateway.online.leases import Claim
    from agentrl_core.gateway.serving.server import GatewayServer
    from agentrl_core.gateway.serving.transport import InProcessClient
    from agentrl_core.types import Interaction, Record

T = TypeVar("T")


class Gateway:
    """HTTP server for the LLM calls to one policy, with the sessions of all records; thread-safe.

    Sessions can be opened over HTTP with `admin_key` only; without an `admin_key` the routes for that refuse everyone.
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
        context: NamedPolicy | None = None,
    ) -> None:
        # Order matters below: each part takes the ones before it. `url` is known after `start` only, so parts that need
        # it take a function.
        self._chat = chat
        self._sampling = sampling
        self._config = config
        self._context_length = engine.context_length
        self.max_tokens = sampling.max_tokens or _most_tokens(engine.context_length, least=sampling.min_tokens)
        """Longest reply of a call that sets no limit, in tokens."""
        self._sessions = SessionBook(url=lambda: self.url, url_tokens=config.url_tokens)
        self._meter = CpuMeter()
        self._policy_recorder = Recorder(store=store, run_id=run_id, meter=self._meter)
        self._policy_calls = PolicyCalls(
            engine=engine,
            chat=chat,
            recorder=self._policy_recorder,
            history=config.history,
            most_replies=config.max_replies_per_call,
            unseen_tools=config.unseen_tools,
            seed=seed,
        )
        self._upstreams = Upstreams(config.upstreams)
        # A recorder of its own, because `calls` is the number of the policy's replies only.
        upstream_calls = UpstreamCalls(
            recorder=Recorder(store=store, run_id=run_id, meter=self._meter),
            seed=seed,
        )
        self.leases = Leases()
        """Slots that wait for online agents."""
        self._online = OnlineSessions(
            sessions=self._sessions,
            calls=self._policy_calls,
            upstream_calls=upstream_calls,
            store=store,
            run_id=run_id,
            policy=self._policy,
            ttl_s=config.session_ttl_s,
        )
        self._admission = Admission(
            pause_timeout_s=config.pause_timeout_s,
            most_replies=config.max_session_replies,
            calls_per_minute=config.max_session_calls_per_minute,
            load=self._online.load,
        )
        admin = Admin(admin_key)
        control = Control(
            admin=admin,
            sessions=self._sessions,
            online=self._online,
            leases=self.leases,
            url=lambda: self.url,
            public_url=config.public_url,
            version=lambda: engine.version,
        )
        self._members = MemberSessions(
            store=store,
            open_session=lambda record, seed_key, sampling: self.open_session(
                record, seed_key=seed_key, sampling=sampling
            ),
            close_session=self.close_session,
        )
        members = MemberControl(
            admin=admin,
            sessions=self._sessions,
            members=self._members,
            run_id=run_id,
            sampling=sampling,
            chat=chat,
            base_url=control.base_url,
            version=lambda: engine.version,
            fatal=lambda: self.fatal,
            ask=self.ask,
        )
        self._large = LargeRequests(self._meter.add)
        compactor = None
        if context is not None and not context.is_none:
            compactor = Compactor(
                policy=context,
                calls=self._policy_calls,
                upstreams=self._upstreams,
                upstream_calls=upstream_calls,
                admission=self._admission,
                large=self._large,
                context_length=engine.context_length,
            )
        self._answerer = Answerer(
            admission=self._admission,
            calls=self._policy_calls,
            upstreams=self._upstreams,
            upstream_calls=upstream_calls,
            large=self._large,
            compactor=compactor,
            drops_hosted_tools=config.hosted_tools == "drop",
        )
        self.router = Router(
            sessions=self._sessions,
            admission=self._admission,
            answerer=self._answerer,
            calls=self._policy_calls,
            upstream_names=self._upstreams.names,
            large=self._large,
            meter=self._meter,
            admin=admin,
            pages={**control.pages(), **members.pages()},
        )
        """Entry point of HTTP requests, from the server and from `http_client` alike."""
        self._server: GatewayServer | None = None

    @property
    def url(self) -> str:
        """Address at which the server listens, without a path; `RunError` before `start`."""
        if self._server is None:
            raise RunError("gateway: not started; call start() first")
        return self._server.url

    @property
    def chat(self) -> Chat:
        """Chat template, tokenizer and parsers of the policy."""
        return self._chat

    @property
    def takes_images(self) -> bool:
        """Whether the policy's chat template takes images."""
        return self._chat.takes_images

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds spent on requests so far, without those of the engine and of the HTTP server itself."""
        return self._meter.seconds

    @property
    def calls(self) -> int:
        """Replies of the policy finished and stored so far."""
        return self._policy_recorder.num_replies

    @property
    def forced_temperatures(self) -> int:
        """Number of calls so far that asked for another temperature and were sampled at the policy's."""
        return self._policy_calls.forced_temperatures

    @property
    def without_effect(self) -> Mapping[str, int]:
        """Number of calls so far whose sampling parameter was ignored, by the parameter's name."""
        return self._policy_calls.without_effect

    @property
    def calls_with_unseen_tools(self) -> int:
        """Number of calls so far whose tools the chat template left out of the prompt."""
        return self._policy_calls.calls_with_unseen_tools

    @property
    def tools_notice(self) -> str:
        """Warning for the user that the chat template drops tools; empty if it renders them."""
        if self._chat.takes_tools:
            return ""
        effect = {
            "refuse": "calls that offer tools are refused",
            "allow": "calls that offer tools are answered without them",
        }[self._config.unseen_tools]
        return (
            "this chat template drops tools: the policy will never see them, so "
            f"{effect} (gateway.unseen_tools: {self._config.unseen_tools})"
        )

    @property
    def fatal(self) -> RunError | None:
        """First error that ended the engine or the store; None while both work.

        Episodes that fail after it are not their agents' fault.
        """
        return self._answerer.fatal

    @functools.cached_property
    def http_client(self) -> InProcessClient:
        """Shared HTTP client for agents: its calls reach the gateway in process, and closing it does nothing."""
        from agentrl_core.gateway.serving.transport import InProcessClient

        return InProcessClient(self.router.handle, self.url)

    def start(self) -> None:
        """Start the HTTP server and return when it accepts requests.

        `RunError` if the port is in use, or if other machines can reach the host and no admin key was chosen.
        """
        from agentrl_core.gateway.serving.server import GatewayServer

        # A key that the run creates is written to a file of this machine; other machines need one that the user chose.
        if problem := exposed(self._config.host, self._config.admin_key_env):
            raise RunError(f"gateway.host: {problem}")
        server = GatewayServer(
            self.router.handle, self.router.refuse_early, host=self._config.host, port=self._config.port
        )
        server.start()
        self._server = server

    def notices(self, *, offers_tools: bool) -> list[str]:
        """Return what the user should know of the chat template and the context by now.

        That it changes past turns is told from the first call on that has such turns; that it drops tools, only if the
        run `offers_tools` (agents that bring their own are told with the refusal, or after the step).
        """
        applies = self._policy_calls.past_is_concerned or self._chat.verdict.stability is Stability.STABLE
        lines = (self.history_notice if applies else "", self.tools_notice if offers_tools else "", self.length_notice)
        return [line for line in lines if line]

    @property
    def length_notice(self) -> str:
        """Note that replies cannot be as long as the config allows; empty if they can."""
        if self.max_tokens <= self._context_length:
            return ""
        return (
            f"note: sampling.max_tokens is {self.max_tokens:,}, but prompt and reply share a context of "
            f"{self._context_length:,} tokens, where replies end"
        )

    @property
    def history_notice(self) -> str:
        """Result of the template check for the user: how earlier turns are rendered, and how to serve the policy."""
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
        """Stop listening; idempotent.

        `http_client` stays open: its connections belong to the agents' event loop, so that loop's owner calls
        `http_client.close_for_good()`.
        """
        if self._server is not None:
            self._server.close()
        self._large.close()
        self._upstreams.close()

    async def open_session(
        self, record: Record, *, seed_key: tuple[int, ...], sampling: SamplingConfig | None = None
    ) -> Session:
        """Open the session of a record, with which its agent can make LLM calls.

        The session's call number k is sampled with a seed mixed from the run's seed, `seed_key` and k.
        """
        policy = self._policy_of(record, sampling)
        return self._sessions.open(record, policy=policy, seed_key=seed_key)

    async def open_online_session(
        self, record: Record, claim: Claim, *, seed_key: tuple[int, ...], sampling: SamplingConfig | None = None
    ) -> Session:
        """Open the session of a record for an online agent; the store keeps it, so it outlives this process.

        `RequestError` (409) if the API key that the agent chose belongs to an open session.
        """
        policy = self._policy_of(record, sampling)
        return await self._online.open(record, claim, policy=policy, seed_key=seed_key, owned=True)

    async def restore_sessions(self) -> int:
        """Load this run's online sessions from the store; return how many of them are open."""
        return await self._online.restore()

    async def close_sessions_of(self, member_id: str) -> int:
        """Close the sessions of a sampling member that has left or was declared lost; return how many there were.

        Its running generations are aborted, and it can open no more sessions here.
        """
        return await self._members.close_all_of(member_id)

    @property
    def member_sessions(self) -> int:
        """Number of sessions that sampling members have open."""
        return self._members.count

    def pause(self, session: Session | None = None) -> None:
        """Hold back new calls of one session, or of all; running generations go on. Idempotent."""
        self._admission.pause(session)

    def resume(self, session: Session | None = None) -> None:
        """Release the calls that `pause` with the same argument holds back."""
        self._admission.resume(session)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold back new calls of all sessions while the context lasts."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    async def attend(self, session: Session, work: Coroutine[Any, Any, T]) -> T:  # noqa: ARG002 - served by this process
        """Await an agent's work; this process serves it, so its server cannot be lost meanwhile."""
        return await work

    def fault_of(self, session: Session) -> ServerLostError | None:  # noqa: ARG002 - served by this process
        """Return None: calls reach their own process."""
        return None

    async def close_session(self, session: Session) -> tuple[Interaction, ...]:
        """End a session and return its interactions, ordered by `seq`.

        Later calls are refused. Running generations are aborted; waits until finished calls are stored.
        """
        # Calls that a pause holds back would otherwise wait for its timeout, though this session takes no more calls.
        self.resume(session)
        if session.online is not None:
            await self._online.close(session)
            return tuple(sorted(session.interactions, key=lambda interaction: interaction.seq))
        # Closed before the aborts: a call that is still being prepared is then refused at its first chunk.
        self._sessions.end(session)
        with session.lock:
            session.closed = True
        await self._policy_calls.abort_all(session)
        return tuple(sorted(session.interactions, key=lambda interaction: interaction.seq))

    def _policy_of(self, record: Record, sampling: SamplingConfig | None) -> SamplingPolicy:
        chosen = sampling or self._sampling
        max_tokens = chosen.max_tokens or self.max_tokens
        return self._policy(
            temperature=chosen.temperature,
            top_p=chosen.top_p,
            top_k=chosen.top_k,
            max_tokens=max_tokens,
            training=not record.is_eval,
        )

    def _policy(self, **kept: Any) -> SamplingPolicy:
        """Build the sampling rules of a session: those of training, with the fields in `kept` replaced."""
        training = {
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "top_k": self._sampling.top_k,
            "max_tokens": self.max_tokens,
            "training": True,
        }
        return SamplingPolicy(
            **{**training, **kept},
            others=self._config.temperature,
            stop_token_ids=self._chat.stop_token_ids,
            min_tokens=self._sampling.min_tokens,
            stop=self._sampling.stop,
            more_stop_token_ids=self._sampling.stop_token_ids,
            ignore_eos=self._sampling.ignore_eos,
        )

    async def ask(self, session: Session, request: ChatRequest, id_prefix: str) -> Reply:
        """Answer a session's call that comes as Python values; `RequestError` if it is refused or fails.

        Quotas, pauses, sampling rules and records are the same as for a call over HTTP.
        """
        return await self._meter.run(self._answerer.ask(session, request, id_prefix))


_MOST_TOKENS = 1024
"""Longest reply in tokens if neither the agent nor the config sets a limit: without one, a reply that never ends
would fill the whole context."""


def _most_tokens(context_length: int, *, least: int) -> int:
    """Return the default limit of a reply in tokens.

    It is at most half of the context, to leave room for the prompt, and at least `least`, or calls would be refused.
    """
    return max(min(_MOST_TOKENS, context_length // 2), least, 1)
