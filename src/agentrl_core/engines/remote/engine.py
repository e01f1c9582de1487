"""Engine that samples from separate model servers, exchanging token ids; a package says how they are talked to.

Policies are trained with it, in contrast to an upstream, which returns text only. `RemoteCall` holds the state of a
request, `RemoteServer` makes the calls to one server, `ServerProtocol` is the wire format.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from agentrl_core.api.publishers import Prepared, PublisherPlan
from agentrl_core.api.weights import Publication
from agentrl_core.concurrency.threads import call_on_thread
from agentrl_core.engines.jobs import Mailbox, check_request
from agentrl_core.engines.remote.calls import RemoteCall
from agentrl_core.engines.remote.failures import BACKOFF, RETRIES, LostReplyError
from agentrl_core.engines.remote.pool import ServerPool
from agentrl_core.engines.remote.publishers import PUBLISHERS
from agentrl_core.engines.remote.server import RemoteServer
from agentrl_core.engines.remote.state import EngineState
from agentrl_core.engines.stopping import Decode, load_decode
from agentrl_core.errors import EngineError, UnservableError
from agentrl_core.http.server_client import ServerClient
from agentrl_core.types import Chunk, FinishReason, GenerateRequest
from agentrl_core.weights.publishers import build_publisher

if TYPE_CHECKING:
    from agentrl_core.api.publishers import WeightPublisher
    from agentrl_core.api.remote import ServerProtocol
    from agentrl_core.api.weights import WeightSource
    from agentrl_core.config.schema import Component

log = logging.getLogger(__name__)

_MOST_TOKEN_ID = 2**31
"""Upper bound of token ids, in place of the vocabulary's size: only the server knows that, and it refuses larger
ids."""
_LAST_PARTS_S = 1.0
"""Time that the tokens of requests which a paused server has aborted may take to arrive."""


class RemoteEngine:
    """Samples from model servers of one kind (see `Engine`). A package's subclass sets `protocol`, and nothing else.

    `url`: the server's address, without `/v1`; several addresses of servers with the same model make a pool, in which
    each group of sessions keeps its server. `model`: the served name; None takes the first that the server lists.
    `api_key_env`: the environment variable that holds its key. `proxy`: the proxy to reach it, as for an upstream.
    `context_length`: None asks the server. `max_connections`: most concurrent calls per event loop and server.
    `connect_timeout_s`: longest time to connect. `silence_s`: longest time without data. `load_timeout_s`: the same
    while the server loads weights. `weights_dir`: folder in which this process writes weights for the servers, which
    must see it under the same path. The weights are in a subfolder that is removed when the engine closes. None uses a
    temporary folder. `publish` and `publish_dtype`: the way of the weights, and their type (`weights.publish` and
    `weights.dtype` of the config).

    A call without a whole reply is repeated, with the tokens received so far, after growing waits. If the server is up,
    it is repeated a few times and then fails with `UnavailableError`. If the server is away, it is repeated until a
    server is back; after `patience_s` it fails with an `EngineError`, which ends the run.

    The policy versions of tokens are those that the server reports, if it does. After a pause, the prompt and the
    sampled tokens are submitted again, with the rest of the token budget and a seed derived from the request's seed and
    the tokens' number.
    """

    protocol: ClassVar[ServerProtocol]
    publishers: ClassVar[Mapping[str, Callable[..., WeightPublisher]]] = PUBLISHERS
    """Ways to bring weights to the servers, by their names in `weights.publish`; see `agentrl_core.api.publishers`."""
    cpu_seconds = 0.0

    def __init__(
        self,
        *,
        url: str | tuple[str, ...],
        model: str | None = None,
        api_key_env: str | None = None,
        context_length: int | None = None,
        max_connections: int = 256,
        connect_timeout_s: float = 10.0,
        silence_s: float = 600.0,
        load_timeout_s: float = 1800.0,
        patience_s: float = 600.0,
        proxy: str | None = None,
        weights_dir: Path | None = None,
        model_dir: Path | None = None,
        seed: int = 0,
        publish: Component | None = None,
        publish_dtype: str | None = None,
    ) -> None:
        self.notice = ""
        """Message to the user about the servers; empty if there is nothing to say."""
        urls = (url,) if isinstance(url, str) else tuple(url)
        if not urls or len(set(urls)) < len(urls):
            raise ValueError(f"'url' names no server, or one twice: {urls}")
        self._urls = urls
        self._model = model
        self._api_key_env = api_key_env
        self._context_length = context_length
        self._publisher = build_publisher(
            self.publishers,
            publish,
            PublisherPlan(
                protocol=self.protocol, dtype=publish_dtype, weights_dir=weights_dir, timeout_s=load_timeout_s
            ),
        )
        self._prepared: tuple[int, WeightSource, Prepared] | None = None
        self._model_dir = model_dir
        self._decode: Decode | None = None
        self._seed = seed
        self._headers: dict[str, str] = {}
        self._state = EngineState()
        self._pool = ServerPool(
            self.protocol,
            [
                RemoteServer(
                    self.protocol,
                    ServerClient(
                        address,
                        proxy=proxy,
                        headers=lambda: self._headers,
                        max_connections=max_connections,
                        connect_timeout_s=connect_timeout_s,
                        silence_s=silence_s,
                        retries=0,  # `_retry` counts them
                    ),
                    self._state,
                    load_timeout_s=load_timeout_s,
                    patience_s=patience_s,
                    api_key_env=api_key_env,
                )
                for address in urls
            ],
        )
        # The state's lock also guards what several event loops change here: `_calls` and `_quiet`.
        self._calls: dict[str, RemoteCall] = {}
        self._quiet: concurrent.futures.Future[None] | None = None
        """Set by a pause; completed once no call is with a server."""

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

    def start(self) -> None:
        """Ask the servers what they serve; have those load the policy's weights that have others. Blocks."""
        self._headers = _authorization(self._api_key_env)
        asyncio.run(self._pool.start(self._model, self._model_dir, self._state))
        self._context_length = self._context_length or self._pool.context_length
        if self._context_length is None:
            raise EngineError(f"{self._urls[0]}: the server states no context length; set engine.context_length")
        self.notice = self._pool.notice
        if self.notice:
            log.warning("%s", self.notice)
        self._state.ended = None

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """Sample a request; see `Engine.generate`."""
        self._state.check_alive()
        limit = check_request(request, context_length=self.context_length, vocab_size=_MOST_TOKEN_ID)
        if wrong := self._pool.unservable(request):
            raise UnservableError(f"request {request.request_id}: {wrong}")
        call = RemoteCall(
            request=request,
            mailbox=Mailbox(),
            limit=limit,
            decode=self._read_decode() if request.sampling.stop and self._model_dir else None,
            seed=self._seed,
        )
        with self._state.lock:
            self._state.check_alive()
            if request.request_id in self._calls:
                raise EngineError(f"request {request.request_id} is already running; ids are unique among running ones")
            self._calls[request.request_id] = call
        call.task = asyncio.create_task(self._run(call))
        ended = False
        try:
            while not ended:
                for chunk in await call.mailbox.take():
                    ended = chunk.finish_reason is not None
                    yield chunk
        finally:
            if not ended:
                self._forget(call)
                call.task.cancel()

    async def abort(self, request_id: str) -> None:
        """End a request with finish reason `abort`; unknown ids are ignored."""
        with self._state.lock:
            call = self._calls.get(request_id)
            if call is None:
                return
            call.aborted = True
        call.wake()

    async def pause(self) -> None:
        """Wait until no server samples for this engine; nothing starts until `resume`."""
        with self._state.lock:
            self._state.check_alive()
            self._state.paused = True
            quiet = self._quiet = concurrent.futures.Future()
            self._note_quiet()
        try:
            await self._pool.pause()
        except EngineError:
            self._release()
            raise
        if self._pool.takes_weights:
            # Aborted requests return their tokens so far. Requests that reached the server after the pause wait
            # there, and are cancelled below.
            await asyncio.wait([asyncio.wrap_future(quiet)], timeout=_LAST_PARTS_S)
        with self._state.lock:
            rest = [call for call in self._calls.values() if call.asking]
        for call in rest:
            call.wake()
        await asyncio.wrap_future(quiet)

    async def resume(self) -> None:
        """Continue after `pause`."""
        await self._pool.resume()
        self._release()

    async def prepare_weights(self, version: int, source: WeightSource) -> None:
        """Do what `load_weights` need not pause for, such as writing files."""
        if not self._pool.takes_weights:
            raise EngineError(self.notice or f"{self.protocol.name} takes no weights")
        prepared = await call_on_thread(lambda: self._publisher.prepare(version, source), name="weights")
        self._prepared = version, source, prepared

    async def load_weights(self, version: int, source: WeightSource) -> Publication:
        """Bring new weights to the servers; requests pause meanwhile and continue afterwards."""
        with self._state.lock:
            self._state.check_alive()
            self._state.check_newer(version)
            was_paused = self._state.paused
        begun = time.monotonic()
        if self._prepared is None or self._prepared[:2] != (version, source):
            await self.prepare_weights(version, source)
        prepared = self._take_prepared()
        paused = time.monotonic()
        if not was_paused:
            await self.pause()
        try:
            if prepared.directory is not None:
                await self._pool.load_weights(prepared.directory, version)
            else:
                await self._pool.deliver_weights(self._publisher, version)
            self._state.name_current(version)
        finally:
            if not was_paused:
                await self.resume()
        ended = time.monotonic()
        return Publication(
            version=version,
            path=self._publisher.path,
            bytes=prepared.bytes,
            seconds=ended - begun,
            stall_s=ended - paused,
        )

    def _take_prepared(self) -> Prepared:
        """Return what `prepare_weights` has prepared last; a failed delivery prepares it anew."""
        assert self._prepared is not None  # noqa: S101 (the caller has just prepared)
        prepared, self._prepared = self._prepared[2], None
        return prepared

    def close(self) -> None:
        """Fail running requests and close the connections; idempotent."""
        with self._state.lock:
            self._state.ended = "the engine was closed"
            calls = list(self._calls.values())
        for call in calls:
            call.wake()
        self._pool.close()
        self._publisher.close()

    # The life of one request, in its consumer's event loop.

    async def _run(self, call: RemoteCall) -> None:
        """Call the server until the output is complete; the consumer reads from the mailbox."""
        try:
            while call.reason is None:
                version = await self._enter(call)
                if version is not None:
                    failure: LostReplyError | None = None
                    with call:
                        failure = await self._try(call, version)
                    self._leave(call)
                    if failure is not None:
                        await self._retry(call, failure)
            self._forget(call)
            call.mailbox.put(call.take_chunks(self.version))
        except EngineError as error:
            call.mailbox.put(error)
        except Exception as error:  # must reach the consumer, which would wait forever otherwise
            log.exception("request %s failed", call.request.request_id)
            unforeseen = EngineError(f"request {call.request.request_id}: {type(error).__name__}: {error}")
            unforeseen.__cause__ = error
            call.mailbox.put(unforeseen)
        finally:
            self._forget(call)

    async def _try(self, call: RemoteCall, version: int) -> LostReplyError | None:
        """Call the server once; return the failure if the call may be repeated."""
        try:
            await call.server.sample(call, version)
        except LostReplyError as failure:
            call.end_where_due()  # perhaps only the finish reason after the last token was lost
            return None if call.reason is not None else failure
        call.server.absence.end()
        call.failures, call.outlived_absence = 0, False
        return None

    async def _retry(self, call: RemoteCall, failure: LostReplyError) -> None:
        """Wait before a call is repeated; raise if repeating is pointless for this call, or for all calls."""
        if failure.answered:
            call.server.absence.end()
        else:
            if failure.outdated and math.isinf(call.server.absence.since):
                log.warning("%s", failure)
            call.server.absence.begin(str(failure), others_are_up=self._pool.has_other_up(call.server))
        wait_s = BACKOFF.wait_s(call.failures, failure.retry_after_s)
        call.failures += 1
        call.outlived_absence = call.outlived_absence or failure.unreached or failure.outdated
        if call.failures > RETRIES or failure.waited or wait_s > BACKOFF.longest_s:
            # Many failures in a row: find out whether they are about this call, or the server is away for all of them.
            is_up = failure.answered or (not failure.outdated and await call.server.control.is_up())
            if is_up:
                call.server.absence.end()
                if not call.outlived_absence:
                    raise failure
                call.failures, call.outlived_absence = 0, False
            else:
                call.outlived_absence = True
        await call.wait(min(wait_s, BACKOFF.longest_s))

    async def _enter(self, call: RemoteCall) -> int | None:
        """Wait while the engine is paused; return the policy version, or None if the request was aborted."""
        while True:
            with self._state.lock:
                self._state.check_alive()
                if call.aborted:
                    call.reason = FinishReason.ABORT
                    return None
                if not self._state.paused:
                    call.server = self._pool.choose(call.request)
                    call.server.num_running += 1
                    call.asking = True
                    return self.version
            await call.wait()

    def _leave(self, call: RemoteCall) -> None:
        """Record that the server no longer samples for this request."""
        with self._state.lock:
            self._stop_asking(call)

    def _forget(self, call: RemoteCall) -> None:
        with self._state.lock:
            if self._calls.get(call.request.request_id) is call:
                del self._calls[call.request.request_id]
            self._stop_asking(call)

    def _stop_asking(self, call: RemoteCall) -> None:
        if call.asking:
            call.asking = False
            call.server.num_running -= 1
        self._note_quiet()

    def _note_quiet(self) -> None:
        """Complete a waiting pause if no call is with the server; call it while holding the lock."""
        if self._quiet is not None and not any(call.asking for call in self._calls.values()):
            self._quiet.set_result(None)
            self._quiet = None

    def _release(self) -> None:
        with self._state.lock:
            self._state.paused = False
            calls = [call for call in self._calls.values() if not call.asking]
        for call in calls:
            call.wake()

    def _read_decode(self) -> Decode:
        if self._decode is None:
            assert self._model_dir is not None  # noqa: S101 (the caller's condition)
            self._decode = load_decode(self._model_dir)
        return self._decode


def _authorization(variable: str | None) -> dict[str, str]:
    """Return the header with the server's key; the key never appears in messages."""
    if variable is None:
        return {}
    key = os.environ.get(variable, "").strip()
    if not key:
        raise EngineError(f"engine.api_key_env: the environment variable {variable} is empty or not set")
    if not key.isascii() or not key.isprintable():
        raise EngineError(f"engine.api_key_env: the value of {variable} has characters that an HTTP header cannot hold")
    return {"authorization": f"Bearer {key}"}
