"""Engine that samples from separate model servers, exchanging token ids; a package says how they are talked to.

Policies are trained with it, in contrast to an upstream, which returns text only. `RemoteCall` holds the state of a
request, `RemoteServer` makes the calls to one server, `ServerProtocol` is the wire format.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from agentrl_core.api.publishers import Prepared, PublisherPlan
from agentrl_core.api.weights import DirectoryWeights, Publication
from agentrl_core.concurrency.threads import call_on_thread
from agentrl_core.engines.jobs import Mailbox, check_request
from agentrl_core.engines.remote.calls import RemoteCall
from agentrl_core.engines.remote.fleet import Fleet
from agentrl_core.engines.remote.launching import Launch, LaunchedServers
from agentrl_core.engines.remote.meeting import Meeting
from agentrl_core.engines.remote.pool import ServerPool
from agentrl_core.engines.remote.proving import Proof, WeightProof
from agentrl_core.engines.remote.publishers import PUBLISHERS
from agentrl_core.engines.remote.running_calls import RunningCalls
from agentrl_core.engines.remote.server import Condition, RemoteServer
from agentrl_core.engines.remote.settings import addresses_of, authorization, check_sources, vocab_size_of
from agentrl_core.engines.remote.state import EngineState, label_of
from agentrl_core.engines.stopping import Decode, decoding, load_decode, read_tokenizer
from agentrl_core.errors import EngineError, UnservableError
from agentrl_core.http.server_client import ServerClient
from agentrl_core.weights.publishers import build_publisher

if TYPE_CHECKING:
    from agentrl_core.api.publishers import WeightPublisher
    from agentrl_core.api.remote import ServerProgram, ServerProtocol
    from agentrl_core.api.weights import WeightSource
    from agentrl_core.config.component import Component
    from agentrl_core.types import Chunk, GenerateRequest

log = logging.getLogger(__name__)


class RemoteEngine:
    """Samples from model servers of one kind (see `Engine`). A package's subclass sets `protocol` and `program`.

    `url`: the server's address, without `/v1`; several addresses of servers with the same model make a fleet, in which
    each group of sessions keeps its server. The address of an SGLang router stands for its workers. `servers_file`: in
    place of `url`, a file with one address per line, which is read again while the engine runs; servers join and leave
    with their lines. `launch`: servers that the engine starts on this machine instead (see `Launch`), with logs in
    `log_dir` and computing in `dtype`. `straggler_s`: how long a publication waits for slower servers once one has the
    new weights; they get calls again when they have them. `model`: the served name; None takes the first that the
    server lists. `api_key_env`: the environment variable that holds its key. `proxy`: the proxy to reach it, as for an
    upstream. `context_length`: None asks the server. `max_connections`: most concurrent calls per event loop and
    server. `connect_timeout_s`: longest time to connect. `silence_s`: longest time without data. `load_timeout_s`: the
    same while the server loads weights. `weights_dir`: folder in which this process writes weights for the servers,
    which must see it under the same path. The weights are in a subfolder that is removed when the engine closes. None
    uses a temporary folder. `max_canary_gap`: largest distance between the logprobs of server and learner for the
    canary, the prompt by which each publication is proven, as a root mean square in nats; None: 0.5. `publish` and
    `publish_dtype`: the way of the weights, and their type (`weights.publish` and `weights.dtype` of the config).

    A call without a whole reply is repeated, with the tokens received so far, after growing waits. If the server is up,
    it is repeated a few times and then fails with `UnavailableError`. If the server is away, it is repeated until a
    server is back; after `patience_s` it fails with an `EngineError`, which ends the run.

    The policy versions of tokens are those that the server reports, if it does. After a pause, the prompt and the
    sampled tokens are submitted again, with the rest of the token budget and a seed derived from the request's seed and
    the tokens' number.
    """

    protocol: ClassVar[ServerProtocol]
    program: ClassVar[ServerProgram | None] = None
    """How to start such a server; None if `launch` is not offered."""
    publishers: ClassVar[Mapping[str, Callable[..., WeightPublisher]]] = PUBLISHERS
    """Ways to bring weights to the servers, by their names in `weights.publish`; see `agentrl_core.api.publishers`."""
    cpu_seconds = 0.0

    @staticmethod
    def check_options(
        *, url: object = None, servers_file: object = None, launch: object = None, **_others: object
    ) -> None:
        """Raise `ValueError` unless exactly one option says where servers are; called before a run."""
        check_sources(url=url, servers_file=servers_file, launch=launch)

    def __init__(
        self,
        *,
        url: str | tuple[str, ...] | None = None,
        servers_file: Path | None = None,
        launch: Launch | None = None,
        model: str | None = None,
        api_key_env: str | None = None,
        context_length: int | None = None,
        max_connections: int = 256,
        connect_timeout_s: float = 10.0,
        silence_s: float = 600.0,
        load_timeout_s: float = 1800.0,
        patience_s: float = 600.0,
        straggler_s: float = 30.0,
        proxy: str | None = None,
        weights_dir: Path | None = None,
        max_canary_gap: float | None = None,
        model_dir: Path | None = None,
        log_dir: Path | None = None,
        dtype: Literal["float32", "bfloat16"] = "float32",
        seed: int = 0,
        publish: Component | None = None,
        publish_dtype: str | None = None,
    ) -> None:
        if max_canary_gap is not None and not max_canary_gap > 0:
            raise ValueError(f"'max_canary_gap': expected a number above 0, found {max_canary_gap}")
        self.notice = ""
        """Message to the user about the servers; empty if there is nothing to say."""
        self.proof: Proof | None = None
        """Proof that the last weights arrived; None if they came without a canary."""
        self._publisher = build_publisher(
            self.publishers,
            publish,
            PublisherPlan(
                protocol=self.protocol, dtype=publish_dtype, weights_dir=weights_dir, timeout_s=load_timeout_s
            ),
        )
        self._launched: LaunchedServers | None = None
        self._server_loss: str | None = None
        """Set once a launched server is gone for good."""
        check_sources(url=url, servers_file=servers_file, launch=launch)
        if launch is not None:
            self._launched = LaunchedServers(
                self.program,
                launch,
                name=self.protocol.name,
                model_dir=model_dir,
                dtype=dtype,
                log_dir=log_dir,
                on_end=self._lose_server,
            )
            url = self._launched.urls
        self._model = model
        self._api_key_env = api_key_env
        self._context_length = context_length
        self._proof = WeightProof(max_gap=max_canary_gap)
        self._prepared: tuple[int, WeightSource, Prepared] | None = None
        self._straggler_s = straggler_s
        self._model_dir = model_dir
        self._decode: Decode | None = None
        self._seed = seed
        self._headers: dict[str, str] = {}
        self._state = EngineState()

        def connect(address: str) -> RemoteServer:
            client = ServerClient(
                address,
                proxy=proxy,
                headers=lambda: self._headers,
                max_connections=max_connections,
                connect_timeout_s=connect_timeout_s,
                silence_s=silence_s,
                retries=0,  # `_retry` counts them
                direct=True,
            )
            return RemoteServer(
                self.protocol,
                client,
                self._state,
                load_timeout_s=load_timeout_s,
                patience_s=patience_s,
                api_key_env=api_key_env,
            )

        self._pool = ServerPool(self.protocol)
        self._fleet = Fleet(
            self._pool,
            self._state,
            addresses_of(url, servers_file, connect),
            connect,
            straggler_s=straggler_s,
            on_change=lambda: self._calls.wake_waiting(),  # noqa: PLW0108 (made below, with the fleet's own method)
            prove=self._proof.prove,
        )
        self._calls = RunningCalls(self._state, self._pool, self._fleet.doubt)

    @property
    def version(self) -> int:
        """Policy version of the weights in use."""
        return self._state.version

    @property
    def context_length(self) -> int:
        """Largest number of tokens of one request, prompt and output together; known once the engine has started."""
        if self._context_length is None:
            raise EngineError("the engine has not been started")
        return self._context_length

    @property
    def servers(self) -> tuple[str, ...]:
        """One line about each server: address, kind, model, version, context, and whether it is in service."""
        return tuple(server.description for server in self._pool.servers)

    @property
    def takes_weights(self) -> bool:
        """Whether all servers can load new weights; known once the engine has started."""
        return self._pool.takes_weights

    def start(self) -> None:
        """Ask the servers what they serve; have those load the policy's weights that have others. Blocks."""
        if self._launched is not None:
            self._launched.start()
        self._headers = authorization(self._api_key_env)
        if self._model_dir is not None:
            self._state.vocab_size = vocab_size_of(self._model_dir)
            # Now, because the directory may be that of a published version, which does not stay.
            tokenizer = read_tokenizer(self._model_dir)
            self._decode = None if tokenizer is None else decoding(tokenizer)
        self._fleet.start(self._model, self._model_dir)
        self._context_length = self._context_length or self._pool.context_length
        if self._context_length is None:
            url = self._pool.servers[0].url
            raise EngineError(f"{url}: the server states no context length; set engine.context_length")
        self.notice = self._pool.notice
        if self.notice:
            log.warning("%s", self.notice)
        with self._state.lock:
            self._state.ended = self._server_loss

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """Sample a request; see `Engine.generate`."""
        self._state.check_alive()
        self._proof.note_use(self.version)
        limit = check_request(request, context_length=self.context_length, vocab_size=self._state.vocab_size)
        if wrong := self._pool.unservable(request):
            raise UnservableError(f"request {request.request_id}: {wrong}")
        call = RemoteCall(
            request=request,
            mailbox=Mailbox(),
            limit=limit,
            decode=self._decode_for(request),
            seed=self._seed,
        )
        self._calls.start(call)
        ended = False
        try:
            while not ended:
                for chunk in await call.mailbox.take():
                    ended = chunk.finish_reason is not None
                    yield chunk
        finally:
            if not ended:
                self._calls.forget(call)
                call.task.cancel()

    async def abort(self, request_id: str) -> None:
        """End a request with finish reason `abort`; unknown ids are ignored."""
        self._calls.abort(request_id)

    async def pause(self) -> None:
        """Wait until no server samples for this engine; nothing starts until `resume`."""
        with self._state.lock:
            self._state.check_alive()
            self._state.paused = True
        try:
            await self._fleet.pause()
        except EngineError:
            self._release()
            raise

    async def resume(self) -> None:
        """Continue after `pause`."""
        await self._fleet.resume()
        self._release()

    async def prepare_weights(self, version: int, source: WeightSource) -> None:
        """Do what `load_weights` need not pause for, such as writing files and computing the canary."""
        if not self._pool.takes_weights:
            raise EngineError(self.notice or f"{self.protocol.name} takes no weights")
        prepared = await call_on_thread(lambda: self._publisher.prepare(version, source), name="weights")
        await self._proof.expect(version, source)
        self._prepared = version, source, prepared

    async def load_weights(self, version: int, source: WeightSource) -> Publication:
        """Bring new weights to the servers, and prove that they arrived.

        Each server pauses and continues by itself; its requests keep their tokens, and go on with the new weights.
        """
        with self._state.lock:
            self._state.check_alive()
            self._state.check_newer(version)
        begun = time.monotonic()
        if self._prepared is None or self._prepared[:2] != (version, source):
            await self.prepare_weights(version, source)
        assert self._prepared is not None  # noqa: S101 (just prepared)
        prepared, self._prepared = self._prepared[2], None
        stall = await self._fleet.publish(version, self._loader(version, prepared))
        if self._launched is not None and isinstance(source, DirectoryWeights):
            # `agentrl serve` reads versions of the trainer, which removes old ones; the newest is kept.
            self._launched.restart_from(source.path)
        self.proof = self._proof.result()
        return Publication(
            version=version,
            path=self._publisher.path,
            bytes=prepared.bytes,
            seconds=time.monotonic() - begun,
            stall_s=stall.stall_s,
            canary_gap=None if self.proof is None else self.proof.gap,
            canary_change=None if self.proof is None else self.proof.change,
        )

    def _loader(self, version: int, prepared: Prepared) -> Callable[[RemoteServer], Coroutine[Any, Any, None]]:
        """Return the function by which one paused server gets prepared weights."""
        directory = prepared.directory
        if directory is not None:
            return lambda server: server.control.load(directory, label_of(version))
        expected = [server for server in self._pool.servers if server.condition is not Condition.OUT]
        return Meeting(self._publisher, version, expected, wait_s=self._straggler_s).load

    async def prove(self, source: WeightSource) -> None:
        """Prove that the servers have these weights already, as those of the current version; raises `EngineError`.

        For the start of a run: it finds a server that serves another model, and learns how much its rounding differs.
        """
        if self._pool.takes_weights:
            await self._proof.expect(self.version, source)
            await self._fleet.prove()
            self.proof = self._proof.result()

    def close(self) -> None:
        """Fail running requests and close the connections; idempotent."""
        with self._state.lock:
            self._state.ended = "the engine was closed"
        self._calls.wake_all()
        self._fleet.close()
        if self._launched is not None:
            self._launched.close()
        self._publisher.close()

    def _lose_server(self, message: str) -> None:
        """End the engine, because a launched server is gone for good; called from another thread."""
        with self._state.lock:
            self._server_loss = message
            # One that has not started, or was closed, keeps its own reason.
            self._state.ended = self._state.ended or message
        self._calls.wake_all()

    def _release(self) -> None:
        with self._state.lock:
            self._state.paused = False
        self._calls.wake_waiting()

    def _decode_for(self, request: GenerateRequest) -> Decode | None:
        if not request.sampling.stop or self._model_dir is None:
            return None
        return self._decode or load_decode(self._model_dir)  # which tells what is missing
