"""One model server of a remote engine: makes the sampling calls and reads their replies."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import enum
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import orjson

from agentrl_core.engines.remote.control import ServerControl
from agentrl_core.engines.remote.failures import Absence, LostReplyError, lost, refusal
from agentrl_core.engines.remote.replies import SHAPE_ERRORS, check_logprobs, checked, error_text, misread, read_json
from agentrl_core.errors import EngineError, UnavailableError
from agentrl_core.http.server_client import ExchangeError, server_sent_events

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from agentrl_core.api.remote import ReplyPart, Served, ServerProtocol, ServerRequest
    from agentrl_core.engines.remote.calls import RemoteCall
    from agentrl_core.engines.remote.state import EngineState
    from agentrl_core.http.server_client import ServerClient, ServerReply

_OK = 200
_MOST_REPLY_BYTES = 256 << 20
"""Largest reply that is not streamed, and largest event of a stream; SGLang's events grow with the output."""
_MOST_EMPTY_ABORTS = 3
"""Consecutive aborts without a token after which a call fails."""


UNKNOWN = -1
"""Version of a server whose weights are not known to be the policy's."""


class Condition(enum.Enum):
    """Whether a server gets calls."""

    READY = "ready"
    UPDATING = "loading weights"
    """It loads the version that is being published; its calls wait for it."""
    OUT = "out of service"
    """It has just joined, was restarted, cannot be reached or is slow: its calls go to others."""


class RemoteServer:
    """Makes the calls to one server. What the pool and the fleet note about it is guarded by the engine's lock."""

    def __init__(
        self,
        protocol: ServerProtocol,
        client: ServerClient,
        state: EngineState,
        *,
        load_timeout_s: float,
        patience_s: float,
        api_key_env: str | None,
    ) -> None:
        self.control = ServerControl(client, protocol, load_timeout_s=load_timeout_s)
        self.absence = Absence(client.url, patience_s=patience_s)
        self.served: Served | None = None
        """Set before the server gets calls."""
        self.condition = Condition.OUT
        self.version = UNKNOWN
        """Policy version of its weights."""
        self.label: str | None = None
        """Its name for these weights; None if it has no names."""
        self.num_placed = 0
        """Calls that run here, or wait for this server."""
        self.num_kept = 0
        """Groups and sessions that have their calls here."""
        self.running: set[RemoteCall] = set()
        """Calls that the server may be sampling for."""
        self._quiet: list[concurrent.futures.Future[None]] = []
        self._protocol, self._client, self._state = protocol, client, state
        self._api_key_env = api_key_env
        self._leftovers: set[asyncio.Task[None]] = set()
        """Running abort requests; kept here because asyncio holds tasks by weak references only."""

    @property
    def url(self) -> str:
        """The server's address."""
        return self._client.url

    @property
    def description(self) -> str:
        """One line for people: address, kind, model, version, context length, and whether it is in service."""
        if self.served is None:
            return f"{self.url}: {self.condition.value}"
        length = self.served.context_length
        context = "" if length is None else f", {length:,} tokens of context"
        version = "other weights" if self.version == UNKNOWN else f"version {self.version}"
        return f"{self.url}: {self._protocol.name} {self.served.model!r}, {version}{context}, {self.condition.value}"

    def close(self) -> None:
        """End all connections."""
        self._client.close()

    def await_quiet(self, lock: threading.Lock) -> concurrent.futures.Future[None]:
        """Return a future that is completed as soon as no call is with the server."""
        quiet: concurrent.futures.Future[None] = concurrent.futures.Future()
        with lock:
            self._quiet.append(quiet)
            self.note_quiet()
        return quiet

    def note_quiet(self) -> None:
        """Complete waiting futures if no call is with the server; call it while holding the lock."""
        if not self.running:
            waiting, self._quiet = self._quiet, []
            for quiet in waiting:
                if quiet.set_running_or_notify_cancel():
                    quiet.set_result(None)

    async def sample(self, call: RemoteCall, version: int) -> None:
        """Make one call for the rest of an output; `version` is that of tokens whose weights the server does not name.

        Raises `LostReplyError` if the call may be repeated, and another `EngineError` if not.
        """
        assert self.served is not None  # noqa: S101 (set by the engine's start)
        request = call.next_request(self.served.model)
        before, finished = len(call.ids), False
        try:
            body = orjson.dumps(self._protocol.body(request))
            with await self._client.request("POST", self._protocol.path, body) as reply:
                await self._check_status(request, reply)
                if request.stream:
                    finished = await self._read_stream(call, request, version, reply)
                else:
                    data = await reply.read(_MOST_REPLY_BYTES)
                    finished = self._take(call, request, version, read_json(self._where(request), data), before)
        except ExchangeError as error:
            self._state.check_alive()
            raise lost(self._where(request), error) from error
        finally:
            if not finished:
                self._abandon(request)
        if not finished and call.reason is None:
            # A stream that ends early is a broken connection, so it is repeated. A whole reply without a finish reason
            # is wrong.
            said = f"{self._where(request)}: the reply has ended without a finish reason"
            raise LostReplyError(said) if request.stream else UnavailableError(said, status=502)
        if call.reason is not None and call.whole and not call.kept:
            await self._score(call, request, version)
        if call.reason is None and len(call.ids) == before:
            call.empty_aborts += 1
            # During a pause the server aborts every call.
            if call.empty_aborts >= _MOST_EMPTY_ABORTS and self._is_sampling:
                times = f"{_MOST_EMPTY_ABORTS} times in a row"
                raise UnavailableError(f"{self._where(request)}: the server aborted it {times}")

    async def _read_stream(self, call: RemoteCall, request: ServerRequest, version: int, reply: ServerReply) -> bool:
        """Pass on a streamed output; return whether a finish reason came."""
        before, finished = len(call.ids), False
        async with aclosing(server_sent_events(reply, most_event_bytes=_MOST_REPLY_BYTES)) as events:
            async for data in events:
                if data == b"[DONE]":
                    continue
                event = read_json(self._where(request), data)
                # The status of a stream is sent before its first token, so later errors come as events.
                if event.get("error"):
                    raise self._refusal(request, _code(event), data, {})
                finished = self._take(call, request, version, event, len(call.ids) - before) or finished
                # This engine has ended the output, at a stop string that the server cannot see as one.
                if call.reason is not None and not finished:
                    break
                if call.reason is None and (chunks := call.take_chunks(version)):
                    call.mailbox.put(chunks)
        return finished

    def _take(self, call: RemoteCall, request: ServerRequest, version: int, reply: Any, num_seen: int) -> bool:
        """Read a reply or an event; return whether it has the finish reason."""
        try:
            part = self._protocol.part(request, reply, num_seen if request.stream else 0)
            part = checked(request, part, self._state.vocab_size)
        except SHAPE_ERRORS as error:
            told = f"{self._where(request)}: {misread(self._protocol.name, error)}"
            raise UnavailableError(told, status=502) from error
        if call.reason is not None:
            # Some servers send their usage in an event after the last token.
            call.cached = part.cached_tokens if part.cached_tokens is not None else call.cached
            return True
        self._check_past(call, request, part)
        call.accept(part, self._versions(request, part, version))
        return part.finish_reason is not None

    def _versions(self, request: ServerRequest, part: ReplyPart, version: int) -> list[int]:
        """Return the policy version of each token; a server that takes no weights has only one version."""
        if not part.labels or (self.served is not None and not self.served.takes_weights):
            return [version] * len(part.ids)
        versions = [self._state.version_of(label, self._where(request)) for label in part.labels]
        # All servers had `version` when the call began, unless one was restarted since.
        if versions and min(versions) < version:
            raise LostReplyError(
                f"{self._where(request)}: sampled from weights of version {min(versions)}, after version {version} was "
                "loaded; was the server restarted? It gets no calls until it has loaded that version again",
                outdated=True,
            )
        return versions

    def _check_past(self, call: RemoteCall, request: ServerRequest, part: ReplyPart) -> None:
        """Raise if tokens that were passed on already came from other weights than was assumed; they cannot be kept."""
        if not part.past_labels or (self.served is not None and not self.served.takes_weights):
            return
        told = [self._state.version_of(label, self._where(request)) for label in part.past_labels]
        assumed = call.versions[len(call.versions) - len(told) :]
        if told != assumed:
            raise UnavailableError(
                f"{self._where(request)}: the streamed tokens were sampled from weights of version {min(told)}, not "
                f"{assumed[0]}, as the server says at their end; was it restarted?",
                status=502,
            )

    async def _score(self, call: RemoteCall, request: ServerRequest, version: int) -> None:
        """Replace the logprobs by those of the unconstrained distribution, with a second call.

        Servers exclude tokens (by a grammar, or before `min_tokens`) before they compute logprobs.
        """
        reason, call.reason = call.reason, None
        scores = await self.score(request, call.ids)
        # After a pause the scores may come from the new weights, for tokens that the old weights sampled. Without a
        # reason set, the output is sampled again.
        if not self._is_sampling or self.version != version:
            return
        call.logprobs = list(scores)
        call.reason = reason

    async def score(self, request: ServerRequest, output_ids: Sequence[int]) -> tuple[float, ...]:
        """Return the logprobs of `output_ids` after the request's prompt, at temperature 1; raises like `sample`."""
        data = await self._ask(request, self._protocol.scoring_body(request, output_ids))
        try:
            scores = self._protocol.scores(request, read_json(self._where(request), data), output_ids)
            check_logprobs(request, tuple(output_ids), scores)
        except SHAPE_ERRORS as error:
            told = f"{self._where(request)}: the scores are not what {self._protocol.name} sends"
            raise UnavailableError(told, status=502) from error
        return scores

    async def sample_one(self, request: ServerRequest) -> tuple[int, float]:
        """Return the first token of an output that is not streamed, with its logprob; raises like `sample`."""
        data = await self._ask(request, self._protocol.body(request))
        try:
            part = self._protocol.part(request, read_json(self._where(request), data), 0)
            part = checked(request, part, self._state.vocab_size)
            return part.ids[0], part.logprobs[0]
        except SHAPE_ERRORS as error:
            told = f"{self._where(request)}: {misread(self._protocol.name, error)}"
            raise UnavailableError(told, status=502) from error

    async def _ask(self, request: ServerRequest, body: Mapping[str, Any]) -> bytes:
        """Return the reply to a call that is not streamed."""
        try:
            with await self._client.request("POST", self._protocol.path, orjson.dumps(body)) as reply:
                await self._check_status(request, reply)
                return await reply.read(_MOST_REPLY_BYTES)
        except ExchangeError as error:
            raise lost(self._where(request), error) from error

    def _abandon(self, request: ServerRequest) -> None:
        """Have the server stop sampling at once, if it does not by itself when the connection closes."""
        if self._state.ended is not None or not self._protocol.abort(request.id):
            return

        async def abort() -> None:
            with contextlib.suppress(EngineError):  # if this fails, the server finishes an output that nobody reads
                await self.control.abort(request.id)

        task = asyncio.get_running_loop().create_task(abort())
        self._leftovers.add(task)
        task.add_done_callback(self._leftovers.discard)

    @property
    def _is_sampling(self) -> bool:
        return self.condition is not Condition.UPDATING and not self._state.paused

    # Errors and their context.

    async def _check_status(self, request: ServerRequest, reply: ServerReply) -> None:
        if reply.status != _OK:
            raise self._refusal(request, reply.status, await reply.read_beginning(), reply.headers)

    def _refusal(self, request: ServerRequest, status: int, data: bytes, headers: Mapping[str, str]) -> EngineError:
        where, text = self._where(request), error_text(data)
        return refusal(where, status, text, headers=headers, api_key_env=self._api_key_env)

    def _where(self, request: ServerRequest) -> str:
        return f"request {request.request_id}: {self._client.url}{self._protocol.path}"


def _code(event: Mapping[str, Any]) -> int:
    """Return the status that an error in the middle of a stream names; 500 if it names none."""
    error = event["error"]
    code = error.get("code") if isinstance(error, dict) else None
    return code if type(code) is int else 500
