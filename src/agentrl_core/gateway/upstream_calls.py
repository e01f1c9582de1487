"""Answer a call that an agent makes to another model than the policy, with the reply of an upstream.

`upstreams` does the HTTP to the provider; this module assembles its reply, and makes it an interaction of the episode
that is never trained.
"""

from __future__ import annotations

import functools
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.tool_parsers import call_id
from agentrl_core.errors import RequestError
from agentrl_core.gateway.call_types import Choice, Delta, Reply, ReplyHead, TokenUsage
from agentrl_core.gateway.recording import OpenCall
from agentrl_core.gateway.sampling_parameters import NAME_CHARS, count_used, reply_name
from agentrl_core.types import FinishReason, Interaction, Message, Sampling

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from agentrl_core.gateway.call_types import ChatRequest
    from agentrl_core.gateway.recording import Recorder
    from agentrl_core.gateway.retries import Attempt
    from agentrl_core.gateway.sessions import Session
    from agentrl_core.gateway.upstream_chat import UpstreamPiece
    from agentrl_core.gateway.upstreams import Upstream

_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "max_tokens", "stop", "grammar")
_NO_USAGE = TokenUsage(prompt_tokens=0, output_tokens=0, cached_tokens=0, reasoning_tokens=0)


@attrs.define
class _ChoiceParts:
    """Parts of one choice of an upstream's reply, received so far."""

    content: list[str] = attrs.field(factory=list)
    reasoning: list[str] = attrs.field(factory=list)
    tool_calls: list[Any] = attrs.field(factory=list)
    finish_reason: str = "stop"
    logprobs: list[Any] = attrs.field(factory=list)

    def message(self) -> Message:
        content = "".join(self.content)
        output: Message = {"role": "assistant", "content": content}
        if self.reasoning:
            output["reasoning_content"] = "".join(self.reasoning)
        if self.tool_calls:
            output["content"] = content or None
            output["tool_calls"] = self.tool_calls
        return output


@attrs.frozen(kw_only=True, eq=False)
class UpstreamCalls:
    """Begins the calls of all sessions to upstreams, with ids that follow from the seed like those of the policy's."""

    recorder: Recorder
    seed: int

    def begin(
        self, session: Session, request: ChatRequest, id_prefix: str, upstream: Upstream, attempt: Attempt | None
    ) -> UpstreamCall:
        """Return the call for a request; `RequestError` where the upstream cannot serve it. Nothing is sent yet."""
        if request.prompts:
            raise RequestError(
                400,
                "unsupported_value",
                f"model {request.model!r} is an upstream, which takes chat messages only; send messages, not a prompt",
                param="model",
            )
        # Upstreams do not know the gateway's reply ids, so the conversation of `previous_response_id` is written out.
        request = session.ledger.continued(request)
        with session.lock:
            number = session.num_upstream_calls
            session.num_upstream_calls += 1
        return UpstreamCall(
            request=request,
            id=f"{id_prefix}{self._name(session, number)}",
            session=session,
            upstream=upstream,
            attempt=attempt,
            recorder=self.recorder,
        )

    def count_calls(self, session: Session, interactions: Sequence[Interaction]) -> int:
        """Return how many upstream calls a restored session has begun, derived from the ids of the stored ones."""
        unseen = {item.id.partition(".")[0][-NAME_CHARS:] for item in interactions if item.upstream}
        return count_used(unseen, functools.partial(self._name, session), most=len(interactions))

    def _name(self, session: Session, number: int) -> str:
        return reply_name(self.seed, session.seed_key, session.twin, "upstream", number)


@attrs.define(kw_only=True, eq=False)
class UpstreamCall(OpenCall):
    """One call to an upstream in progress, with the parts of the reply that have arrived."""

    upstream: Upstream
    started_at: float = attrs.field(factory=time.time, init=False)
    """Time of the request, in Unix seconds."""
    _usage: TokenUsage = attrs.field(default=_NO_USAGE, init=False)
    _choices: Sequence[_ChoiceParts] = attrs.field(init=False)

    @_choices.default
    def _(self) -> list[_ChoiceParts]:
        return [_ChoiceParts() for _ in range(self.request.n)]

    @property
    def head(self) -> ReplyHead:
        """Id and sampling; an upstream reports its counts at the end only."""
        return ReplyHead(id=self.id, prompt_tokens=0, sampling=self._sampling)

    @property
    def _sampling(self) -> Sampling:
        """Sampling as the agent asked for it; the provider may have other defaults."""
        request = self.request
        return Sampling(**{name: value for name in _SAMPLING_FIELDS if (value := getattr(request, name)) is not None})

    async def complete(self) -> Reply:
        """Request and record a reply that is not streamed; `RequestError` if the provider fails."""
        self.session.check_open()  # before the provider is called and paid
        for piece in await self.upstream.complete(self.request):
            self._add(piece)
        return await self._record(self.request.n)

    async def stream(self) -> AsyncGenerator[Delta | Reply, None]:
        """Yield the deltas of a streamed reply as they come, and last the whole reply, which is recorded by then."""
        self.session.check_open()
        async with aclosing(self.upstream.stream(self.request)) as pieces:
            async for piece in pieces:
                yield self._add(piece)
        yield await self._record(self.request.n)

    def _add(self, piece: UpstreamPiece) -> Delta:
        """Add a piece to its choice and return it as a delta for the agent."""
        choice = self._choices[piece.choice]
        if piece.content:
            choice.content.append(piece.content)
        if piece.reasoning:
            choice.reasoning.append(piece.reasoning)
        # Some providers give tool calls no id, but agents need one to send the result back.
        new_calls = self.request.as_sent(
            [
                {**call, "id": call["id"] or call_id(self._choice_id(piece.choice), number)}
                for number, call in enumerate(piece.tool_calls, start=len(choice.tool_calls))
            ]
        )
        choice.tool_calls += new_calls
        choice.logprobs += piece.logprobs
        choice.finish_reason = piece.finish_reason or choice.finish_reason
        self._usage = piece.usage or self._usage
        return Delta(
            index=piece.choice,
            content=piece.content,
            reasoning=piece.reasoning,
            tool_calls=new_calls,
            upstream_logprobs=piece.logprobs,
        )

    def _reply(self, first_seq: int) -> Reply:
        choices = [self._choice(index, choice, first_seq) for index, choice in enumerate(self._choices)]
        return Reply(request=self.request, choices=tuple(choices))

    def _remember(self, interactions: Sequence[Interaction]) -> None:
        for interaction in interactions:
            self.session.ledger.note(interaction)

    def _choice(self, index: int, choice: _ChoiceParts, first_seq: int) -> Choice:
        request, cut = self.request, choice.finish_reason == "length"
        interaction = Interaction(
            id=self._choice_id(index),
            record_id=self.session.record_id,
            seq=first_seq + index,
            # An upstream returns no token ids, so nothing of its replies can be trained.
            prompt_ids=(),
            output_ids=(),
            logprobs=(),
            versions=(),
            messages=request.messages,
            output=choice.message(),
            tools=request.tools,
            sampling=self._sampling,
            requested=request.ignored,
            finish_reason=FinishReason.LENGTH if cut else FinishReason.STOP,
            model=request.model,
            api=request.api,
            trainable=False,
            upstream=self.upstream.name,
            cached_tokens=self._usage.cached_tokens,
            retry_key="" if self.attempt is None else self.attempt.key.text,
            started_at=self.started_at,
            finished_at=time.time(),
        )
        return Choice(
            interaction=interaction,
            prompt_tokens=self._usage.prompt_tokens,
            finish_reason="tool_calls" if choice.tool_calls else "length" if cut else "stop",
            upstream_logprobs=tuple(choice.logprobs),
            upstream_usage=self._usage,
        )

    def _choice_id(self, index: int) -> str:
        return f"{self.id}.{index}" if index else self.id
