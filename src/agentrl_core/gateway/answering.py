"""Translate between an LLM API's HTTP bodies and calls to the policy or an upstream, with retries, streams and errors.

`routes` has found session and dialect by then. This is the boundary where a call's exceptions become HTTP errors.
"""

from __future__ import annotations

import functools
import logging
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import attrs
import orjson

from agentrl_core.errors import AgentRLError, RequestError, RunError, UnavailableError, UnservableError, UnstorableError
from agentrl_core.gateway.call_types import Delta, Reply
from agentrl_core.gateway.dialects.responses import OpenAIResponses
from agentrl_core.gateway.dialects.responses_stored import with_referenced_items
from agentrl_core.gateway.large_requests import LARGE_BYTES
from agentrl_core.gateway.retries import Attempt, RetryKey, retry_key
from agentrl_core.gateway.serving.web import (
    EVENTS,
    HttpRequest,
    HttpResponse,
    StartedStream,
    decode_body,
    json_response,
    refused,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from agentrl_core.gateway.admission import Admission
    from agentrl_core.gateway.call_types import ChatRequest, Decode, Dialect
    from agentrl_core.gateway.compaction import Compactor
    from agentrl_core.gateway.history.ledger import Prompt
    from agentrl_core.gateway.large_requests import LargeRequests
    from agentrl_core.gateway.policy_calls import PolicyCalls
    from agentrl_core.gateway.recording import OpenCall
    from agentrl_core.gateway.serving.web import Headers
    from agentrl_core.gateway.sessions import Session
    from agentrl_core.gateway.upstream_calls import UpstreamCalls
    from agentrl_core.gateway.upstreams import Upstreams

_logger = logging.getLogger(__name__)
_MOST_OPTIONS_BYTES = 262_144
"""Most bytes of what a call stores beside its conversation and its tools, which the context limits."""

_TOO_MANY = 429


class Answerer:
    """Answers the LLM calls of all APIs and remembers the error that ends the run."""

    def __init__(
        self,
        *,
        admission: Admission,
        calls: PolicyCalls,
        upstreams: Upstreams,
        upstream_calls: UpstreamCalls,
        large: LargeRequests,
        compactor: Compactor | None,
        drops_hosted_tools: bool,
    ) -> None:
        self._admission = admission
        self._calls = calls
        self._upstreams = upstreams
        self._upstream_calls = upstream_calls
        self._large = large
        self._compactor = compactor
        """None without a context policy."""
        self._drops_hosted_tools = drops_hosted_tools
        self.fatal: RunError | None = None
        """First failure of the engine or the store that no request caused; None while both work.

        An engine that died or was closed, or a store that cannot write, fails every later call, so a retry is useless.
        `UnservableError` and `UnstorableError` concern one call only and are not kept here.
        """

    async def answer(self, dialect: Dialect, request: HttpRequest, session: Session) -> HttpResponse:
        """Answer one call; every failure becomes an error response in the format of its API.

        `RequestError` if the call may not begin.
        """
        await self._admission.admit(session)
        try:
            num_bytes = len(request.body)
            read = functools.partial(self._read, dialect, request, session, is_large=num_bytes >= LARGE_BYTES)
            parsed, key, prompts = await self._large.run(session.record_id, num_bytes, read)
            attempt = await session.attempts.enter(key)
            # A retry of a call whose reply the client missed.
            if attempt is not None and attempt.choices:
                return self.respond(dialect, Reply(request=parsed, choices=attempt.choices))
            try:
                notes: Mapping[str, Any] = {}
                if self._compactor is not None and self._compactor.concerns(parsed):
                    prompts, notes = await self._compactor.prompts(session, parsed, num_bytes)
                call = self._begin(session, parsed, dialect.id_prefix, prompts, attempt, notes)
                if parsed.stream:
                    body = self._stream(dialect, call)
                    headers = (*EVENTS, *_identified(call.id))
                    # SDKs decide by the status whether to retry; they do not retry for an error inside a stream that
                    # began with status 200. So the first bytes are awaited here, where a failure still gets a status.
                    return HttpResponse(headers=headers, body=StartedStream(await anext(body), body))
                with session.attempts.running(attempt):
                    reply = await call.complete()
                return self.respond(dialect, reply)
            except BaseException:
                session.attempts.give_up(attempt)
                raise
        except Exception as error:  # noqa: BLE001 - the boundary: a client always gets an answer
            return refused(dialect, self.refusal(error, session))

    async def ask(self, session: Session, request: ChatRequest, id_prefix: str) -> Reply:
        """Return the policy's reply to a call without HTTP; `RequestError` where a call over HTTP would fail."""
        session.check_open()
        session.used_at = time.monotonic()
        await self._admission.admit(session)
        try:
            prompts, notes = None, None
            if self._compactor is not None and self._compactor.concerns(request):
                prompts, notes = await self._compactor.prompts(session, request, 0)
            return await self._calls.begin(session, request, id_prefix, prompts, notes=notes).complete()
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
        num_bytes = len(request.body)
        key, body = retry_key(request), decode_body(request.take_body())
        # References are resolved before parsing: the dialect knows no session.
        if isinstance(dialect, OpenAIResponses):
            body = with_referenced_items(body, session.ledger)
        parsed = self.without_hosted_tools(dialect.parse(body, request.headers))
        if num_bytes > _MOST_OPTIONS_BYTES:
            _check_options(parsed)
        if not is_large or self._upstreams.find(parsed.model) is not None:
            return parsed, key, None
        if self._compactor is not None and self._compactor.concerns(parsed):  # it may need another prompt
            return parsed, key, None
        return parsed, key, self._calls.prompts(session, parsed)

    def without_hosted_tools(self, request: ChatRequest) -> ChatRequest:
        """Return the request with a note for the trace if it declares hosted tools, which no template renders.

        `RequestError` (400) if the config refuses them.
        """
        hosted = request.hosted_tools
        # A provider of chat completions gets their fields as the agent sent them.
        if not hosted or (request.api == "chat" and self._upstreams.find(request.model) is not None):
            return request
        if self._drops_hosted_tools:
            note = f"{', '.join(hosted.values())}: dropped (gateway.hosted_tools: drop)"
            return attrs.evolve(request, ignored={**request.ignored, "hosted_tools": note})
        where, kind = next(iter(hosted.items()))
        raise RequestError(
            400,
            "unsupported_tool",
            f"{where}: {kind!r} is not one of your own functions: a provider would run it, and there is none. Leave it "
            "out, or set gateway.hosted_tools: drop",
            param=where,
        )

    def _begin(
        self,
        session: Session,
        request: ChatRequest,
        id_prefix: str,
        prompts: Sequence[Prompt] | None,
        attempt: Attempt | None,
        notes: Mapping[str, Any],
    ) -> OpenCall:
        """Return the call that gets the reply: to the upstream of the request's model name, else to the policy."""
        upstream = self._upstreams.find(request.model)
        if upstream is None:
            return self._calls.begin(session, request, id_prefix, prompts, attempt, notes)
        return self._upstream_calls.begin(session, request, id_prefix, upstream, attempt)

    def respond(self, dialect: Dialect, reply: Reply) -> HttpResponse:
        """Encode a complete reply, as a stream if the client asked for one."""
        decode, headers = self._calls.chat.decode, _identified(reply.id)
        if not reply.request.stream:
            return json_response(dialect.response(reply, decode), headers=headers)
        return HttpResponse(headers=(*EVENTS, *headers), body=_replay(dialect, reply, decode))

    async def _stream(self, dialect: Dialect, call: OpenCall) -> AsyncGenerator[bytes, None]:
        writer = dialect.writer(call.request, call.head, self._calls.chat.decode)
        begun = False
        try:
            with call.session.attempts.running(call.attempt, streamed=True):
                # `aclosing` aborts the generation when the client disconnects, not at garbage collection.
                async with aclosing(call.stream()) as parts:
                    async for part in parts:
                        # The head waits for the first part, so that a failure before it still gets an HTTP status.
                        head, begun = b"" if begun else writer.begin(), True
                        if data := head + (writer.end(part) if isinstance(part, Reply) else writer.delta(part)):
                            yield data
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


def _identified(reply_id: str) -> Headers:
    """Return the headers by which OpenAI's and Anthropic's SDKs know a request: the id under which the trace has it."""
    return (("x-request-id", reply_id), ("request-id", reply_id))


async def _replay(dialect: Dialect, reply: Reply, decode: Decode) -> AsyncGenerator[bytes, None]:
    """Encode a complete reply as a stream, with one delta per choice."""
    writer = dialect.writer(reply.request, reply.head, decode)
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


def _check_options(request: ChatRequest) -> None:
    """Raise `RequestError` (400) for options so large that a session could fill the store with them.

    Dialects shorten all others, and a prompt has at most as many tokens as the context.
    """
    options = (request.model, request.template_options)
    if (size := len(orjson.dumps(options, default=str))) > _MOST_OPTIONS_BYTES:
        raise RequestError(
            400,
            "options_too_large",
            f"the model's name and the options of the chat template have {size:,} bytes; expected at most "
            f"{_MOST_OPTIONS_BYTES:,}",
        )
