"""Engine that samples from a separate vLLM or SGLang server, exchanging token ids.

Policies are trained with it, in contrast to an upstream, which returns text only. `RemoteCall` holds the state of a
request, `ServerFormat` the wire format, `ServerControl` the management calls.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson

from agentrl_core.engines.jobs import Mailbox, check_request
from agentrl_core.engines.remote.calls import RemoteCall
from agentrl_core.engines.remote.control import ServerControl
from agentrl_core.engines.remote.failures import BACKOFF, RETRIES, Absence, lost, refusal
from agentrl_core.engines.remote.wire_formats import (
    VLLM,
    Ask,
    LostReplyError,
    Part,
    ServerFormat,
    SGLang,
    check_servable,
    read_json,
)
from agentrl_core.engines.stopping import Decode, load_decode
from agentrl_core.errors import EngineError, UnavailableError
from agentrl_core.http.server_client import ExchangeError, ServerClient, server_sent_events
from agentrl_core.types import Chunk, FinishReason, GenerateRequest
from agentrl_core.weights.folder import WeightsFolder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.api.weights import WeightSource
    from agentrl_core.engines.remote.control import Served

log = logging.getLogger(__name__)

_CLOSED = "the engine was closed"
_OK = 200
_MOST_REPLY_BYTES = 256 << 20
"""Largest reply that is not streamed, and largest event of a stream; SGLang's events grow with the output."""
_MOST_TOKEN_ID = 2**31
"""Upper bound of token ids, in place of the vocabulary's size: only the server knows that, and it refuses larger
ids."""
_MOST_SHOWN_CHARS = 300
_MOST_VERSION_DIGITS = 18
"""Longest label that is read as a policy version; all such numbers fit 64 bits."""
_MOST_EMPTY_ABORTS = 3
"""Consecutive aborts without a token after which a call fails."""
_LAST_PARTS_S = 1.0
"""Time that the tokens of requests which a paused server has aborted may take to arrive."""


class OpenAICompatibleEngine:
    """Samples from a model server (see `Engine`).

    `url`: the server's address, without `/v1`. `server`: its kind. `model`: the served name; None takes the first that
    the server lists. `api_key_env`: the environment variable that holds its key. `proxy`: the proxy to reach it, as for
    an upstream. `context_length`: None asks the server. `max_connections`: most concurrent calls per event loop.
    `connect_timeout_s`: longest time to connect. `silence_s`: longest time without data. `load_timeout_s`: the same
    while the server loads weights. `weights_dir`: folder in which this process writes weights for the server, which
    must see it under the same path. The weights are in a subfolder that is removed when the engine closes. None uses a
    temporary folder.

    A call without a whole reply is repeated, with the tokens received so far, after growing waits. If the server is up,
    it is repeated a few times and then fails with `UnavailableError`. If the server is away, it is repeated until the
    server is back; after `patience_s` it fails with an `EngineError`, which ends the run.

    The policy versions of tokens are those that the server reports, if it does. After a pause, the prompt and the
    sampled tokens are submitted again, with the rest of the token budget and a seed derived from the request's seed and
    the tokens' number.

    vLLM cannot load weights here. Its logprobs are right for temperatures other than 1 only if it was started with
    `--logprobs-mode processed_logprobs`. Requests for which it would return other logprobs are refused.
    """

    cpu_seconds = 0.0

    def __init__(
        self,
        *,
        url: str,
        server: Literal["vllm", "sglang"],
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
    ) -> None:
        self.version = 0
        self.notice = ""
        """Message to the user about this server; empty if there is nothing to say."""
        self._server: ServerFormat = SGLang() if server == "sglang" else VLLM()
        self._model = model
        self._api_key_env = api_key_env
        self._context_length = context_length
        self._folder = WeightsFolder(weights_dir)
        self._model_dir = model_dir
        self._decode: Decode | None = None
        self._seed = seed
        self._headers: dict[str, str] = {}
        self._client = ServerClient(
            url,
            proxy=proxy,
            headers=lambda: self._headers,
            max_connections=max_connections,
            connect_timeout_s=connect_timeout_s,
            silence_s=silence_s,
            retries=0,  # `_retry` counts them
        )
        self._control = ServerControl(self._client, self._server, load_timeout_s=load_timeout_s, patience_s=patience_s)
        self._absence = Absence(self._client.url, patience_s=patience_s)
        self._scaled = True
        """Whether the server's logprobs take the temperature into account."""
        self._labels: dict[str, int] = {}
        """The server's names for weights → policy versions."""
        self._lock = threading.Lock()
        """Guards the state that several event loops change: `_calls`, `_paused`, `_quiet`, `version`, `_ended`."""
        self._calls: dict[str, RemoteCall] = {}
        self._paused = False
        self._quiet: concurrent.futures.Future[None] | None = None
        """Set by a pause; completed once no call is with the server."""
        self._ended: str | None = "the engine has not been started"
        self._leftovers: set[asyncio.Task[None]] = set()
        """Running abort requests; kept here because asyncio holds tasks by weak references only."""

    @property
    def context_length(self) -> int:
        """Largest number of tokens of one request, prompt and output together; known once the engine has started."""
        if self._context_length is None:
            raise EngineError("the engine has not been started")
        return self._context_length

    def start(self) -> None:
        """Ask the server what it serves; if its weights are not the policy's, have it load those. Blocks."""
        self._headers = _authorization(self._api_key_env)
        asyncio.run(self._begin())
        if self.notice:
            log.warning("%s", self.notice)
        self._ended = None

    async def _begin(self) -> None:
        served = await self._control.describe(self._model)
        self._model = served.model
        if self._context_length is None:
            self._context_length = served.context_length
        if self._context_length is None:
            raise EngineError(f"{self._client.url}: the server states no context length; set engine.context_length")
        await self._begin_weights(served)

    async def _begin_weights(self, served: Served) -> None:
        """Make sure that the server samples from version 0, or set `notice` if that cannot be ensured."""
        if self._server.name == "vLLM":
            self._scaled = await self._control.takes_temperature_into_account(served.model)
            self.notice = f"{self._client.url}: vLLM keeps serving {served.model}, and never gets trained weights"
            return
        label = served.label
        if self._model_dir is not None and (
            # SGLang calls the weights that it was started with `default`.
            label not in {None, "default"} or served.model_path != str(self._model_dir)
        ):
            label = "0"
            await self._control.load_at_start(self._model_dir, label)
        self._labels = {} if label is None else {label: 0}

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """Sample a request; see `Engine.generate`."""
        self._check_alive()
        limit = check_request(request, context_length=self.context_length, vocab_size=_MOST_TOKEN_ID)
        check_servable(request, self._server, scaled=self._scaled)
        call = RemoteCall(
            request=request,
            mailbox=Mailbox(),
            limit=limit,
            decode=self._read_decode() if request.sampling.stop and self._model_dir else None,
            seed=self._seed,
        )
        with self._lock:
            self._check_alive()
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
        with self._lock:
            call = self._calls.get(request_id)
            if call is None:
                return
            call.aborted = True
        call.wake()

    async def pause(self) -> None:
        """Wait until the server samples nothing for this engine; nothing starts until `resume`."""
        with self._lock:
            self._check_alive()
            self._paused = True
            quiet = self._quiet = concurrent.futures.Future()
            self._note_quiet()
        if self._server.name == "SGLang":
            try:
                await self._control.pause()
            except EngineError:
                self._release()
                raise
            # Aborted requests return their tokens so far. Requests that reached the server after the pause wait
            # there, and are cancelled below.
            await asyncio.wait([asyncio.wrap_future(quiet)], timeout=_LAST_PARTS_S)
        with self._lock:
            rest = [call for call in self._calls.values() if call.asking]
        for call in rest:
            call.wake()
        await asyncio.wrap_future(quiet)

    async def resume(self) -> None:
        """Continue after `pause`."""
        if self._server.name == "SGLang":
            await self._control.resume()
        self._release()

    async def load_weights(self, version: int, source: WeightSource) -> None:
        """Have the server read new weights from a directory; requests pause meanwhile and continue afterwards."""
        with self._lock:
            self._check_alive()
            if version <= self.version:
                raise EngineError(
                    f"weights of version {version} offered, but the engine has version {self.version}: versions must "
                    "rise"
                )
            was_paused = self._paused
        if self._server.name == "vLLM":
            raise EngineError(
                f"{self._client.url}: vLLM has no route to load weights from a directory. Train with SGLang "
                "(engine: {use: openai_compatible, server: sglang, …}) or the embedded engine; a vLLM server can be "
                "used to evaluate, and as an upstream."
            )
        directory = await self._folder.directory(version, source)
        if not was_paused:
            await self.pause()
        try:
            await self._control.load(directory, str(version))
            with self._lock:
                self._labels[str(version)] = self.version = version
        finally:
            if not was_paused:
                await self.resume()

    def close(self) -> None:
        """Fail running requests and close the connections; idempotent."""
        with self._lock:
            self._ended = _CLOSED
            calls = list(self._calls.values())
        for call in calls:
            call.wake()
        self._client.close()
        self._folder.close()

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
            await self._ask(call, version)
        except LostReplyError as failure:
            call.end_where_due()  # perhaps only the finish reason after the last token was lost
            return None if call.reason is not None else failure
        self._absence.end()
        call.failures, call.outlived_absence = 0, False
        return None

    async def _retry(self, call: RemoteCall, failure: LostReplyError) -> None:
        """Wait before a call is repeated; raise if repeating is pointless for this call, or for all calls."""
        if failure.answered:
            self._absence.end()
        else:
            self._absence.begin(str(failure))
        wait_s = BACKOFF.wait_s(call.failures, failure.retry_after_s)
        call.failures += 1
        call.outlived_absence = call.outlived_absence or failure.unreached
        if call.failures > RETRIES or failure.waited or wait_s > BACKOFF.longest_s:
            # Many failures in a row: find out whether they are about this call, or the server is away for all of them.
            is_up = failure.answered or await self._control.is_up()
            if is_up:
                self._absence.end()
                if not call.outlived_absence:
                    raise failure
                call.failures, call.outlived_absence = 0, False
            else:
                call.outlived_absence = True
        await call.wait(min(wait_s, BACKOFF.longest_s))

    async def _enter(self, call: RemoteCall) -> int | None:
        """Wait while the engine is paused; return the policy version, or None if the request was aborted."""
        while True:
            with self._lock:
                self._check_alive()
                if call.aborted:
                    call.reason = FinishReason.ABORT
                    return None
                if not self._paused:
                    call.asking = True
                    return self.version
            await call.wait()

    def _leave(self, call: RemoteCall) -> None:
        """Record that the server no longer samples for this request."""
        with self._lock:
            call.asking = False
            self._note_quiet()

    def _forget(self, call: RemoteCall) -> None:
        with self._lock:
            call.asking = False
            if self._calls.get(call.request.request_id) is call:
                del self._calls[call.request.request_id]
            self._note_quiet()

    def _note_quiet(self) -> None:
        """Complete a waiting pause if no call is with the server; call it while holding the lock."""
        if self._quiet is not None and not any(call.asking for call in self._calls.values()):
            self._quiet.set_result(None)
            self._quiet = None

    def _release(self) -> None:
        with self._lock:
            self._paused = False
            calls = [call for call in self._calls.values() if not call.asking]
        for call in calls:
            call.wake()

    async def _ask(self, call: RemoteCall, version: int) -> None:
        """Make one call to the server for the rest of an output."""
        ask = call.next_ask(self._model or "")
        before, finished = len(call.ids), False
        try:
            with await self._client.request("POST", self._server.path, orjson.dumps(self._server.body(ask))) as reply:
                if reply.status != _OK:
                    raise self._refusal(ask, reply.status, await reply.read_beginning(), reply.headers)
                if ask.stream:
                    events = server_sent_events(reply, most_event_bytes=_MOST_REPLY_BYTES)
                    finished = await self._read_stream(call, ask, version, events)
                else:
                    data = await reply.read(_MOST_REPLY_BYTES)
                    finished = self._take(call, ask, version, read_json(self._where(ask), data), before)
        except ExchangeError as error:
            self._check_alive()
            raise lost(self._where(ask), error) from error
        finally:
            if not finished:
                self._abandon(ask)
        if not finished and call.reason is None:
            # A stream that ends early is a broken connection, so it is repeated. A whole reply without a finish reason
            # is wrong.
            said = f"{self._where(ask)}: the reply has ended without a finish reason"
            raise LostReplyError(said) if ask.stream else UnavailableError(said, status=502)
        if call.reason is not None and call.whole:
            await self._score(call, ask)
        if call.reason is None and len(call.ids) == before:
            call.empty_aborts += 1
            # During a pause the server aborts every call.
            if call.empty_aborts >= _MOST_EMPTY_ABORTS and not self._paused:
                raise UnavailableError(f"{self._where(ask)}: the server aborted it {_MOST_EMPTY_ABORTS} times in a row")

    async def _read_stream(self, call: RemoteCall, ask: Ask, version: int, events: Any) -> bool:
        """Pass on a streamed output; return whether a finish reason came."""
        before, finished = len(call.ids), False
        async with aclosing(events):
            async for data in events:
                if data == b"[DONE]":
                    continue
                event = read_json(self._where(ask), data)
                # The status of a stream is sent before its first token, so later errors come as events.
                if "error" in event and "meta_info" not in event and "choices" not in event:
                    raise self._refusal(ask, _code(event), data, {})
                finished = self._take(call, ask, version, event, len(call.ids) - before) or finished
                # This engine has ended the output, at a stop string that the server cannot see as one.
                if call.reason is not None and not finished:
                    break
                if call.reason is None and (chunks := call.take_chunks(version)):
                    call.mailbox.put(chunks)
        return finished

    def _take(self, call: RemoteCall, ask: Ask, version: int, reply: Any, num_seen: int) -> bool:
        """Read a reply or an event; return whether it has the finish reason."""
        if call.reason is not None:
            if reply.get("choices") == []:  # vLLM sends its usage in an event after the last token
                call.cached = self._server.part(ask, reply, num_seen).cached_tokens
            return True
        try:
            part = self._server.part(ask, reply, num_seen if ask.stream else 0)
        except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
            shown = f"{type(error).__name__}: {error}"[:_MOST_SHOWN_CHARS]
            raise UnavailableError(
                f"{self._where(ask)}: the reply is not what {self._server.name} sends: {shown}", status=502
            ) from error
        call.accept(part, self._versions(ask, part, version))
        return part.finish_reason is not None

    def _versions(self, ask: Ask, part: Part, version: int) -> list[int]:
        """Return the policy version of each token."""
        if not part.labels:
            return [version] * len(part.ids)
        return [self._version_of(ask, label) for label in part.labels]

    def _version_of(self, ask: Ask, label: str) -> int:
        known = self._labels.get(label)
        if known is not None:
            return known
        with self._lock:
            # Another process of this run may have loaded newer weights.
            if label.isdecimal() and len(label) <= _MOST_VERSION_DIGITS and int(label) > self.version:
                self._labels[label] = self.version = int(label)
                return self.version
        raise EngineError(
            f"{self._where(ask)}: sampled from weights that the server calls {label!r}, which this run did not load; "
            "let no other run load weights into this server"
        )

    async def _score(self, call: RemoteCall, ask: Ask) -> None:
        """Replace the logprobs by those of the unconstrained distribution, with a second call.

        Servers exclude tokens (by a grammar, or before `min_tokens`) before they compute logprobs.
        """
        reason, call.reason = call.reason, None
        body = orjson.dumps(self._server.scoring_body(ask, call.ids))
        try:
            with await self._client.request("POST", self._server.path, body) as reply:
                if reply.status != _OK:
                    raise self._refusal(ask, reply.status, await reply.read_beginning(), reply.headers)
                data = await reply.read(_MOST_REPLY_BYTES)
        except ExchangeError as error:
            raise lost(self._where(ask), error) from error
        # After a pause the scores may come from the new weights, for tokens that the old weights sampled. Without a
        # reason set, the output is sampled again.
        if self._paused:
            return
        try:
            call.logprobs = list(self._server.scores(ask, read_json(self._where(ask), data), call.ids))
        except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
            raise UnavailableError(
                f"{self._where(ask)}: the scores are not what {self._server.name} sends", status=502
            ) from error
        call.reason = reason

    def _abandon(self, ask: Ask) -> None:
        """Have the server stop sampling at once. vLLM stops when the connection closes, SGLang only seconds later."""
        if self._server.name != "SGLang" or self._ended is not None:
            return

        async def abort() -> None:
            with contextlib.suppress(EngineError):  # if this fails, the server finishes an output that nobody reads
                await self._control.abort(ask.id)

        task = asyncio.get_running_loop().create_task(abort())
        self._leftovers.add(task)
        task.add_done_callback(self._leftovers.discard)

    # Errors and their context.

    def _check_alive(self) -> None:
        if self._ended is not None:
            raise EngineError(self._ended)

    def _refusal(self, ask: Ask, status: int, data: bytes, headers: Mapping[str, str]) -> EngineError:
        return refusal(self._where(ask), status, data, headers=headers, api_key_env=self._api_key_env)

    def _where(self, ask: Ask) -> str:
        return f"request {ask.request_id}: {self._client.url}{self._server.path}"

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


def _code(event: Mapping[str, Any]) -> int:
    """Return the status that an error in the middle of a stream names; 500 if it names none."""
    error = event["error"]
    code = error.get("code") if isinstance(error, dict) else None
    return code if type(code) is int else 500
