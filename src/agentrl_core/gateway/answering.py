"""Answer the calls of one API after another's rules: parse, ask the policy or an upstream, encode."""

from __future__ import annotations

import functools
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING

from agentrl_core.errors import AgentRLError, RequestError, RunError, UnavailableError, UnservableError, UnstorableError
from agentrl_core.gateway.dialects.responses import OpenAIResponses
from agentrl_core.gateway.dialects.responses_stored import with_referenced_items
from agentrl_core.gateway.exchange import Delta, Reply
from agentrl_core.gateway.large import LARGE_BYTES
from agentrl_core.gateway.retries import Attempt, RetryKey, retry_key
from agentrl_core.gateway.serving.web import EVENTS, HttpRequest, HttpResponse, decode_body, json_response, refused
from agentrl_core.gateway.streams import StartedStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from agentrl_core.chat.replies import Piece
    from agentrl_core.gateway.calls import Call
    from agentrl_core.gateway.exchange import ChatRequest, Decode, Dialect
    from agentrl_core.gateway.forwarding import Forwarder
    from agentrl_core.gateway.history.ledger import Prompt
    from agentrl_core.gateway.large import LargeRequests
    from agentrl_core.gateway.service import PolicyService
    from agentrl_core.gateway.sessions import Session
    from agentrl_core.gateway.upstreams import Upstream
    from agentrl_core.types import Chunk

_logger = logging.getLogger(__name__)

_TOO_MANY = 429


class Answerer:
    """Answers LLM calls, whatever API they come by."""

    def __init__(self, service: PolicyService, forwarder: Forwarder, large: LargeRequests) -> None:
        self._service = service
        self._forwarder = forwarder
        self._large = large
        self.fatal: RunError | None = None
        """The failure of the engine or the store that no request can be blamed for; the first one.

        An engine that died or was closed and a store whose file takes no more writes fail every call, so
        nobody need try again. `UnservableError` and `UnstorableError` are about one call: only it fails.
        """

    async def answer(self, dialect: Dialect, request: HttpRequest, session: Session) -> HttpResponse:
        """Answer one call; every failure becomes an error in the shape of its API."""
        try:
            num_bytes = len(request.body)
            read = functools.partial(self._read, dialect, request, session, is_large=num_bytes >= LARGE_BYTES)
            parsed, key, prompts = await self._large.run(session.record_id, num_bytes, read)
            attempt = await session.attempts.enter(key)
            if attempt is not None and attempt.choices:  # the client asks again for what it has missed
                return self._answer(dialect, Reply(request=parsed, choices=attempt.choices))
            return await self._generate(dialect, session, parsed, attempt, prompts)
        except Exception as error:  # noqa: BLE001 - the boundary: a client always gets an answer
            return refused(dialect, self.refusal(error, session))

    async def ask(self, session: Session, request: ChatRequest, id_prefix: str) -> Reply:
        """Ask the policy without HTTP; `RequestError` where a call over HTTP would be refused or fail."""
        try:
            return await self._service.complete(self._service.begin(session, request, id_prefix))
        except Exception as error:
            raise self.refusal(error, session) from error

    def _read(
        self, dialect: Dialect, request: HttpRequest, session: Session, *, is_large: bool
    ) -> tuple[ChatRequest, RetryKey | None, Sequence[Prompt] | None]:
        """Return what a body asks for, and the prompts of a large one: of others they are not worth a thread."""
        key, body = retry_key(request), decode_body(request.take_body())
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
                f"model {request.model!r} is asked by chat completions; send messages in place of a prompt",
                param="model",
            )
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
        writer = dialect.writer(request, reply_id, 0, self._service.chat.decode)
        begun = False
        try:
            with session.attempts.running(attempt, streamed=True):
                pieces = self._forwarder.stream(session, request, upstream, reply_id, attempt)
                async with aclosing(pieces):
                    async for piece in pieces:
                        head, begun = b"" if begun else writer.begin(), True
                        if data := head + (writer.end(piece) if isinstance(piece, Reply) else writer.delta(piece)):
                            yield data
        except Exception as error:
            if not begun:  # the status can still say it
                raise
            yield writer.error(self.refusal(error, session))

    def _answer(self, dialect: Dialect, reply: Reply) -> HttpResponse:
        """Send a reply that is there as a whole."""
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
                        head, begun = b"" if begun else writer.begin(), True
                        piece = generation.reader.feed(chunk.ids)
                        if data := head + writer.delta(_delta(generation.index, piece, chunk)):
                            yield data
                reply = await service.finish(call)
            rests = [writer.delta(_delta(item.index, item.reader.rest())) for item in call.generations]
            yield b"".join([*rests, writer.end(reply)])
        except Exception as error:
            if not begun:  # the status can still say it
                raise
            yield writer.error(self.refusal(error, call.session))

    def refusal(self, error: Exception, session: Session) -> RequestError:
        """Turn a call's failure into its answer, remember it for the session, and for the run what ends the run."""
        one_call = isinstance(error, UnservableError | UnstorableError)
        if isinstance(error, RunError) and not one_call and self.fatal is None:
            self.fatal = error
        refusal = as_refusal(error)
        session.remember_refusal(refusal)
        return refusal


def as_refusal(error: Exception) -> RequestError:
    """Turn any failure into an HTTP error; what nobody foresaw is logged and told without details."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, UnavailableError):
        code = "rate_limit_exceeded" if error.status == _TOO_MANY else "engine_unavailable"
        return RequestError(error.status, code, str(error), retry_after_s=error.retry_after_s)
    if isinstance(error, UnservableError | UnstorableError):  # to send the same again would change nothing
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
    """Answer with a stream once there is something to send.

    A failure before that gets a status of its own. SDKs go by it when they decide whether to try again, and do not
    when an error stands in a stream that began well.
    """
    return HttpResponse(headers=EVENTS, body=StartedStream(await anext(body), body))


async def _replay(dialect: Dialect, reply: Reply, decode: Decode) -> AsyncGenerator[bytes, None]:
    """Stream a reply that is there as a whole."""
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
                told_logprobs=choice.told_logprobs,
            )
        )
    yield writer.end(reply)
