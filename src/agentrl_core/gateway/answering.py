"""Turn an LLM call's HTTP body into its HTTP response: parse with the dialect, get the reply, encode with the dialect.

`routes` calls this once it knows session and dialect. The reply comes from `service` (the policy) or from `forwarding`
(an upstream). This is the boundary where exceptions become HTTP errors.
"""

from __future__ import annotations

import functools
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING

from agentrl_core.errors import AgentRLError, RequestError, RunError, UnavailableError, UnservableError, UnstorableError
from agentrl_core.gateway.call_types import Delta, Reply
from agentrl_core.gateway.dialects.responses import OpenAIResponses
from agentrl_core.gateway.dialects.responses_stored import with_referenced_items
from agentrl_core.gateway.large_requests import LARGE_BYTES
from agentrl_core.gateway.retries import Attempt, RetryKey, retry_key
from agentrl_core.gateway.serving.web import EVENTS, HttpRequest, HttpResponse, decode_body, json_response, refused
from agentrl_core.gateway.streams import StartedStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from agentrl_core.chat.replies import Piece
    from agentrl_core.gateway.call_types import ChatRequest, Decode, Dialect
    from agentrl_core.gateway.forwarding import Forwarder
    from agentrl_core.gateway.generations import Call
    from agentrl_core.gateway.history.ledger import Prompt
    from agentrl_core.gateway.large_requests import LargeRequests
    from agentrl_core.gateway.service import PolicyService
    from agentrl_core.gateway.sessions import Session
    from agentrl_core.gateway.upstreams import Upstream
    from agentrl_core.types import Chunk

_logger = logging.getLogger(__name__)

_TOO_MANY = 429


class Answerer:
    """Answers the LLM calls of all APIs and remembers the error that ends the run."""

    def __init__(self, service: PolicyService, forwarder: Forwarder, large: LargeRequests) -> None:
        self._service = service
        self._forwarder = forwarder
        self._large = large
        self.fatal: RunError | None = None
        """First failure of the engine or the store that no request caused; None while both work.

        An engine that died or was closed, or a store that cannot write, fails every later call, so a retry is useless.
        `UnservableError` and `UnstorableError` concern one call only and are not kept here.
        """

    async def answer(self, dialect: Dialect, request: HttpRequest, session: Session) -> HttpResponse:
        """Answer one call; every failure becomes an error response in the format of its API."""
        try:
            num_bytes = len(request.body)
            read = functools.partial(self._read, dialect, request, session, is_large=num_bytes >= LARGE_BYTES)
            parsed, key, prompts = await self._large.run(session.record_id, num_bytes, read)
            attempt = await session.attempts.enter(key)
            # A retry of a call whose reply the client missed.
            if attempt is not None and attempt.choices:
                return self._answer(dialect, Reply(request=parsed, choices=attempt.choices))
            try:
                return await self._generate(dialect, session, parsed, attempt, prompts)
            except BaseException:
                session.attempts.give_up(attempt)
                raise
        except Exception as error:  # noqa: BLE001 - the boundary: a client always gets an answer
            return refused(dialect, self.refusal(error, session))

    async def ask(self, session: Session, request: ChatRequest, id_prefix: str) -> Reply:
        """Return the policy's reply to a call without HTTP; `RequestError` where a call over HTTP would fail."""
        try:
            return await self._service.complete(self._service.begin(session, request, id_prefix))
        except Exception as error:
            raise self.refusal(error, session) from error

    def _read(
        self, dialect: Dialect, request: HttpRequest, session: Session, *, is_large: bool
    ) -> tuple[ChatRequest, RetryKey | None, Sequence[Prompt] | None]:
        """Parse a body; for a large one, also build its prompts.

        This runs on a thread if the body is large. Tokenizing a large prompt must happen there, too, or it would block
        the event loop; for small bodies the prompts are None and built later, as a thread costs more than they do.
        """
        # The key is a digest of the body, so it is read before `take_body` gives the body up.
        key, body = retry_key(request), decode_body(request.take_body())
        # References are resolved before parsing: the dialect knows no session.
        if isinstance(dialect, OpenAIResponses):
            body = with_referenced_items(body, session.ledger)
        parsed = dialect.parse(body, request.headers)
        if not is_large or self._forwarder.find(parsed.model) is not None:
            return parsed, key, None
        return parsed, key, self._service.prompts(session, parsed)

    async def _generate(
        self,
        dialect: Dialect,
        session: Session,
        request: ChatRequest,
        attempt: Attempt | None,
        prompts: Sequence[Prompt] | None,
    ) -> HttpResponse:
        upstream = self._forwarder.find(request.model)
        if upstream is not None:
            return await self._forward(dialect, session, request, attempt, upstream)
        service = self._service
        call = service.begin(session, request, dialect.id_prefix, prompts)
        call.attempt = attempt
        if request.stream:
            return await _streaming(self._stream(dialect, request, call))
        with session.attempts.running(attempt):
            reply = await service.complete(call)
        return self._answer(dialect, reply)

    async def _forward(
        self, dialect: Dialect, session: Session, request: ChatRequest, attempt: Attempt | None, upstream: Upstream
    ) -> HttpResponse:
        if request.prompts:
            raise RequestError(
                400,
                "unsupported_value",
                f"model {request.model!r} is an upstream, which takes chat messages only; send messages, not a prompt",
                param="model",
            )
        # Upstreams do not know the gateway's reply ids, so the conversation of `previous_response_id` is written out.
        request = self._service.continued(session, request)
        reply_id = self._service.forwarded_id(session, dialect.id_prefix)
        if request.stream:
            return await _streaming(self._forward_stream(dialect, session, request, attempt, upstream, reply_id))
        with session.attempts.running(attempt):
            reply = await self._forwarder.complete(session, request, upstream, reply_id, attempt)
        return self._answer(dialect, reply)

    async def _forward_stream(
        self,
        dialect: Dialect,
        session: Session,
        request: ChatRequest,
        attempt: Attempt | None,
        upstream: Upstream,
        reply_id: str,
    ) -> AsyncGenerator[bytes, None]:
        # 0 prompt tokens: an upstream reports its counts at the end only.
        writer = dialect.writer(request, reply_id, 0, self._service.chat.decode)
        begun = False
        try:
            with session.attempts.running(attempt, streamed=True):
                # `aclosing` ends the provider's connection when the client disconnects, not at garbage collection.
                pieces = self._forwarder.stream(session, request, upstream, reply_id, attempt)
                async with aclosing(pieces):
                    async for piece in pieces:
                        head, begun = b"" if begun else writer.begin(), True
                        if data := head + (writer.end(piece) if isinstance(piece, Reply) else writer.delta(piece)):
                            yield data
        except Exception as error:
            if not begun:  # nothing is sent yet, so the HTTP status can still report the failure
                raise
            yield writer.error(self.refusal(error, session))

    def _answer(self, dialect: Dialect, reply: Reply) -> HttpResponse:
        """Encode a complete reply, as a stream if the client asked for one."""
        decode = self._service.chat.decode
        if not reply.request.stream:
            return json_response(dialect.response(reply, decode))
        return HttpResponse(headers=EVENTS, body=_replay(dialect, reply, decode))

    async def _stream(self, dialect: Dialect, request: ChatRequest, call: Call) -> AsyncGenerator[bytes, None]:
        service = self._service
        prompt_tokens = sum(len(generation.prompt.ids) for generation in call.generations[:: request.n])
        writer = dialect.writer(request, call.id, prompt_tokens, service.chat.decode)
        begun = False
        try:
            with call.session.attempts.running(call.attempt, streamed=True):
                async with aclosing(service.sample(call)) as chunks:
                    async for generation, chunk in chunks:
                        # The head waits for the first chunk, so that a failure before it still gets an HTTP status.
                        head, begun = b"" if begun else writer.begin(), True
                        piece = generation.reader.feed(chunk.ids)
                        if data := head + writer.delta(_delta(generation.index, piece, chunk)):
                            yield data
                reply = await service.finish(call)
            # The end of the stream tells the client that its reply is recorded, so it goes out after `finish`.
            rests = [writer.delta(_delta(item.index, item.reader.rest())) for item in call.generations]
            yield b"".join([*rests, writer.end(reply)])
        except Exception as error:
            if not begun:  # nothing is sent yet, so the HTTP status can still report the failure
                raise
            yield writer.error(self.refusal(error, call.session))

    def refusal(self, error: Exception, session: Session) -> RequestError:
        """Return the HTTP error for a call's failure; keep it in the session and, if it ends the run, in `fatal`."""
        one_call = isinstance(error, UnservableError | UnstorableError)
        if isinstance(error, RunError) and not one_call and self.fatal is None:
            self.fatal = error
        refusal = as_refusal(error)
        session.remember_refusal(refusal)
        return refusal


def as_refusal(error: Exception) -> RequestError:
    """Return the HTTP error for any exception; an unexpected one is logged, and its text is not sent to the client."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, UnavailableError):
        code = "rate_limit_exceeded" if error.status == _TOO_MANY else "engine_unavailable"
        return RequestError(error.status, code, str(error), retry_after_s=error.retry_after_s)
    # 400, although the request is well-formed: SDKs retry a 5xx, and the same request would fail again.
    if isinstance(error, UnservableError | UnstorableError):
        return RequestError(400, "invalid_request", str(error))
    if isinstance(error, AgentRLError):
        _logger.error("LLM call failed: %s", error)
        return RequestError(500, type(error).__name__, str(error))
    _logger.error("LLM call failed", exc_info=error)
    return RequestError(500, "internal_error", f"the gateway failed: {type(error).__name__}; see the run's log")


def _delta(index: int, piece: Piece, chunk: Chunk | None = None) -> Delta:
    return Delta(
        index=index,
        content=piece.content,
        reasoning=piece.reasoning,
        tool_calls=piece.tool_calls,
        ids=chunk.ids if chunk else (),
        logprobs=chunk.logprobs if chunk else (),
        top_logprobs=chunk.top_logprobs if chunk else (),
    )


async def _streaming(body: AsyncGenerator[bytes, None]) -> HttpResponse:
    """Wait for the first bytes of a stream, then return the response that sends them and the rest.

    A failure before the first bytes gets an HTTP status. SDKs decide by the status whether to retry; they do not retry
    for an error inside a stream that began with status 200.
    """
    return HttpResponse(headers=EVENTS, body=StartedStream(await anext(body), body))


async def _replay(dialect: Dialect, reply: Reply, decode: Decode) -> AsyncGenerator[bytes, None]:
    """Encode a complete reply as a stream, with one delta per choice."""
    writer = dialect.writer(reply.request, reply.id, reply.usage.prompt_tokens, decode)
    yield writer.begin()
    for index, choice in enumerate(reply.choices):
        output = choice.interaction.output
        yield writer.delta(
            Delta(
                index=index,
                content=output.get("content") or "",
                reasoning=output.get("reasoning_content", ""),
                tool_calls=tuple(output.get("tool_calls", ())),
                ids=choice.interaction.output_ids,
                logprobs=choice.interaction.logprobs,
                top_logprobs=choice.top_logprobs,
                upstream_logprobs=choice.upstream_logprobs,
            )
        )
    yield writer.end(reply)
