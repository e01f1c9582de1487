"""Answer and record the calls of one episode to other models than the policy: `service`'s counterpart for upstreams.

`upstreams` does the HTTP to the provider; this module assembles the reply, stores it as an interaction that is never
trained, and puts it into the session's ledger.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from agentrl_core.api.tool_parsers import call_id
from agentrl_core.gateway.call_types import Choice, Delta, Reply, TokenUsage
from agentrl_core.types import FinishReason, Interaction, Message, Sampling

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from agentrl_core.api.stores import Store
    from agentrl_core.gateway.call_types import ChatRequest
    from agentrl_core.gateway.retries import Attempt
    from agentrl_core.gateway.sessions import Session
    from agentrl_core.gateway.upstreams import Upstream, UpstreamPiece, Upstreams

Forwarded: TypeAlias = "Delta | Reply"

_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "max_tokens", "stop", "grammar")


class Forwarder:
    """Answers calls to upstream models and stores them. They have no token ids and are never trained."""

    def __init__(
        self, *, upstreams: Upstreams, store: Store, run_id: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._upstreams = upstreams
        self._store = store
        self._run_id = run_id
        self._clock = clock
        # Replies are stored on several event loops.
        self._lock = threading.Lock()
        self.calls = 0
        """Number of upstream replies stored so far."""

    @property
    def names(self) -> tuple[str, ...]:
        """Model names that are answered by upstreams."""
        return self._upstreams.names

    def find(self, model: str) -> Upstream | None:
        """Return the upstream of a model name; None if the policy answers it."""
        return self._upstreams.find(model)

    async def complete(
        self, session: Session, request: ChatRequest, upstream: Upstream, reply_id: str, attempt: Attempt | None
    ) -> Reply:
        """Request and store a reply that is not streamed; `RequestError` if the provider fails."""
        session.check_open()  # before the provider is called and paid
        heard = _ReplyAssembly(request, reply_id, self._clock())
        for piece in await upstream.complete(request):
            heard.add(piece)
        return await self._finish(session, heard, upstream, attempt)

    async def stream(
        self, session: Session, request: ChatRequest, upstream: Upstream, reply_id: str, attempt: Attempt | None
    ) -> AsyncGenerator[Forwarded, None]:
        """Yield the deltas of a streamed reply as they come, and last the whole reply, which is stored by then."""
        session.check_open()
        heard = _ReplyAssembly(request, reply_id, self._clock())
        async with aclosing(upstream.stream(request)) as pieces:
            async for piece in pieces:
                yield heard.add(piece)
        yield await self._finish(session, heard, upstream, attempt)

    async def _finish(
        self, session: Session, heard: _ReplyAssembly, upstream: Upstream, attempt: Attempt | None
    ) -> Reply:
        stored: concurrent.futures.Future[None] = concurrent.futures.Future()
        # Under one lock with the check: a session that closes now either refuses this call or waits for its write.
        with session.lock:
            session.check_open()
            first = session.num_finished
            session.num_finished += len(heard.choices)
            session.writes.add(stored)
        retry_key = "" if attempt is None else attempt.key.text
        reply = heard.reply(session, upstream.name, first_seq=first, finished_at=self._clock(), retry_key=retry_key)
        if attempt is not None:
            attempt.storing = True
        # A client that disconnects now must not cancel the write: the reply is complete, and a retry may ask for it.
        await asyncio.shield(asyncio.ensure_future(self._keep(session, reply, attempt, stored)))
        return reply

    async def _keep(
        self, session: Session, reply: Reply, attempt: Attempt | None, stored: concurrent.futures.Future[None]
    ) -> None:
        kept = False
        try:
            interactions = [choice.interaction for choice in reply.choices]
            for interaction in interactions:
                await self._store.add_interaction(self._run_id, interaction)
            with session.lock:
                session.interactions.extend(interactions)
                for interaction in interactions:
                    session.ledger.note(interaction)
            with self._lock:
                self.calls += len(interactions)
            kept = True
        finally:
            # A reply that could not be stored is not given to a retry: it would be sent and be in no record.
            if attempt is not None:
                attempt.settle(reply.choices if kept else None)
            session.writes.discard(stored)
            stored.set_result(None)


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


class _ReplyAssembly:
    """Assembles the pieces of an upstream's reply into deltas for the agent and into the stored reply."""

    def __init__(self, request: ChatRequest, reply_id: str, started_at: float) -> None:
        self._request = request
        self._reply_id = reply_id
        self._started_at = started_at
        self._usage = TokenUsage(prompt_tokens=0, output_tokens=0, cached_tokens=0, reasoning_tokens=0)
        self.choices: Sequence[_ChoiceParts] = [_ChoiceParts() for _ in range(request.n)]

    def add(self, piece: UpstreamPiece) -> Delta:
        """Add a piece and return it as a delta for the agent."""
        said = self.choices[piece.choice]
        if piece.content:
            said.content.append(piece.content)
        if piece.reasoning:
            said.reasoning.append(piece.reasoning)
        # Some providers give tool calls no id, but agents need one to send the result back.
        new_calls = [
            call if call["id"] else {**call, "id": call_id(self._choice_id(piece.choice), number)}
            for number, call in enumerate(piece.tool_calls, start=len(said.tool_calls))
        ]
        said.tool_calls += new_calls
        said.logprobs += piece.logprobs
        said.finish_reason = piece.finish_reason or said.finish_reason
        self._usage = piece.usage or self._usage
        return Delta(
            index=piece.choice,
            content=piece.content,
            reasoning=piece.reasoning,
            tool_calls=tuple(new_calls),
            upstream_logprobs=piece.logprobs,
        )

    def reply(
        self,
        session: Session,
        upstream: str,
        *,
        first_seq: int,
        finished_at: float,
        retry_key: str,
    ) -> Reply:
        """Build the complete reply with one interaction per choice."""
        request = self._request
        asked = {name: value for name in _SAMPLING_FIELDS if (value := getattr(request, name)) is not None}
        sampling = Sampling(**asked)
        choices = []
        for index, said in enumerate(self.choices):
            cut = said.finish_reason == "length"
            interaction = Interaction(
                id=self._choice_id(index),
                record_id=session.record_id,
                seq=first_seq + index,
                # An upstream returns no token ids, so nothing of its replies can be trained.
                prompt_ids=(),
                output_ids=(),
                logprobs=(),
                versions=(),
                messages=request.messages,
                output=said.message(),
                tools=request.tools,
                sampling=sampling,
                requested=request.ignored,
                finish_reason=FinishReason.LENGTH if cut else FinishReason.STOP,
                model=request.model,
                api=request.api,
                trainable=False,
                upstream=upstream,
                cached_tokens=self._usage.cached_tokens,
                retry_key=retry_key,
                started_at=self._started_at,
                finished_at=finished_at,
            )
            choices.append(
                Choice(
                    interaction=interaction,
                    prompt_tokens=self._usage.prompt_tokens,
                    finish_reason="tool_calls" if said.tool_calls else "length" if cut else "stop",
                    upstream_logprobs=tuple(said.logprobs),
                    upstream_usage=self._usage,
                )
            )
        return Reply(request=request, choices=tuple(choices))

    def _choice_id(self, index: int) -> str:
        return f"{self._reply_id}.{index}" if index else self._reply_id
