"""Run a prepared call in the engine, whole or as a stream, and build the interactions and choices from its tokens.

Calls of several event loops use one engine. A generation always ends with its call: when the client disconnects, when
another reply of the call fails, and when the episode ends.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, cast

import attrs
import orjson

from agentrl_core.api.kept_tokens import joined
from agentrl_core.api.tool_parsers import ParsedReply
from agentrl_core.errors import EngineError, RequestError
from agentrl_core.gateway.call_types import Choice, Delta, Reply, ReplyHead
from agentrl_core.gateway.recording import OpenCall
from agentrl_core.types import (
    Chunk,
    FinishReason,
    GenerateRequest,
    Interaction,
    KeptTokens,
    Message,
    Sampling,
    Versions,
    run_lengths,
)
from agentrl_core.weights.witness import witness

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from agentrl_core.api.engines import Engine
    from agentrl_core.chat.facade import Chat
    from agentrl_core.chat.replies import Piece, ReplyReader
    from agentrl_core.gateway.history.ledger import Prompt


@attrs.define(kw_only=True, eq=False)
class Generation:
    """One reply of a call while the engine samples it; a call for `n` replies has `n` of these per prompt."""

    id: str
    """Id of the interaction that this reply becomes, and of its request in the engine."""
    index: int
    prompt: Prompt
    sampling: Sampling
    reader: ReplyReader
    chunks: list[Chunk] = attrs.field(factory=list, init=False)
    """Chunks sampled so far; the last chunk of a complete reply has the finish reason."""
    parsed: ParsedReply = attrs.field(init=False)
    """Content, reasoning and tool calls of a complete reply."""

    @property
    def output_ids(self) -> tuple[int, ...]:
        """Ids of all sampled tokens. [T]."""
        # A reply that is not streamed may come as one chunk, whose tuple needs no copy.
        if len(self.chunks) == 1:
            return self.chunks[0].ids
        return tuple(chain.from_iterable(chunk.ids for chunk in self.chunks))

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Behaviour log-probabilities of all sampled tokens, in nats. [T]."""
        if len(self.chunks) == 1:
            return self.chunks[0].logprobs
        return tuple(chain.from_iterable(chunk.logprobs for chunk in self.chunks))

    @property
    def kept(self) -> KeptTokens:
        """Sampling masks of all sampled tokens. [T]."""
        if len(self.chunks) == 1:
            return self.chunks[0].kept
        return joined([chunk.kept for chunk in self.chunks], [len(chunk.ids) for chunk in self.chunks])

    @property
    def finish_reason(self) -> FinishReason | None:
        """Reason why the engine stopped; None while it samples."""
        return self.chunks[-1].finish_reason if self.chunks else None


@attrs.define(kw_only=True, eq=False)
class PolicyCall(OpenCall):
    """One call to the policy in progress."""

    requested: Mapping[str, Any]
    generations: tuple[Generation, ...]
    """`n` replies for each prompt, in the order of the prompts."""
    started_at: float
    """Time at which the request was prepared, in Unix seconds."""
    chat: Chat
    engine: Engine

    @property
    def head(self) -> ReplyHead:
        """Id, length of all prompts, and sampling."""
        num_tokens = sum(len(generation.prompt.ids) for generation in self.generations[:: self.request.n])
        return ReplyHead(id=self.id, prompt_tokens=num_tokens, sampling=self.generations[0].sampling)

    async def complete(self) -> Reply:
        """Sample and record all replies; cancelling this aborts the generations, and nothing is recorded."""
        if len(self.generations) > 1:
            async with aclosing(self._sample_together()) as merged:
                async for _ in merged:
                    pass
        else:
            (generation,) = self.generations
            async with _EngineTime(self, generation) as chunks:
                async for chunk in chunks:
                    self._add(generation, chunk)
        return await self._finish()

    async def stream(self) -> AsyncGenerator[Delta | Reply, None]:
        """Yield the parts of all replies as they are sampled, and last the whole reply."""
        if len(self.generations) > 1:
            async with aclosing(self._sample_together()) as merged:
                async for generation, chunk in merged:
                    yield self._delta(generation, generation.reader.feed(chunk.ids), chunk)
        else:
            # The common case, without the merge: each chunk would pass through one more async generator.
            (generation,) = self.generations
            async with _EngineTime(self, generation) as chunks:
                async for chunk in chunks:
                    self._add(generation, chunk)
                    yield self._delta(generation, generation.reader.feed(chunk.ids), chunk)
        reply = await self._finish()
        for generation in self.generations:
            if rest := generation.reader.rest():
                yield self._delta(generation, rest)
        yield reply

    def _delta(self, generation: Generation, piece: Piece, chunk: Chunk | None = None) -> Delta:
        return Delta(
            index=generation.index,
            content=piece.content,
            reasoning=piece.reasoning,
            tool_calls=self.request.as_sent(piece.tool_calls),
            ids=chunk.ids if chunk else (),
            logprobs=chunk.logprobs if chunk else (),
            top_logprobs=chunk.top_logprobs if chunk else (),
        )

    def _add(self, generation: Generation, chunk: Chunk) -> None:
        """Append sampled tokens; `RequestError` (410) once the episode has ended."""
        self.session.check_open()
        generation.chunks.append(chunk)

    async def _sample_together(self) -> AsyncGenerator[tuple[Generation, Chunk], None]:
        """Sample several replies concurrently and yield their chunks as they come; the first failure ends all."""
        arrived: asyncio.Queue[tuple[Generation, Chunk] | Exception | None] = asyncio.Queue()

        async def run(generation: Generation) -> None:
            try:
                async with _EngineTime(self, generation) as chunks:
                    async for chunk in chunks:
                        self._add(generation, chunk)
                        arrived.put_nowait((generation, chunk))
            except Exception as error:  # noqa: BLE001 - raised again in the loop below
                arrived.put_nowait(error)
            else:
                arrived.put_nowait(None)

        meter = self.recorder.meter
        tasks = [asyncio.ensure_future(meter.run(run(generation))) for generation in self.generations]
        left = len(tasks)
        try:
            while left:
                item = await arrived.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    left -= 1
                else:
                    yield item
        finally:
            # After a failure or a disconnect, the other generations must not go on in the engine.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _finish(self) -> Reply:
        # Parsed before the session counts the reply: a parser that fails must leave no trace there.
        for generation in self.generations:
            generation.parsed = self._parse(generation)
        return await self._record(len(self.generations))

    def _reply(self, first_seq: int) -> Reply:
        finished_at = time.time()
        choices = [self._choice(one, self._interaction(one, first_seq, finished_at)) for one in self.generations]
        return Reply(request=self.request, choices=tuple(choices))

    def _remember(self, interactions: Sequence[Interaction]) -> None:
        for generation, interaction in zip(self.generations, interactions, strict=True):
            self.session.ledger.add(self.chat, generation.prompt, interaction)

    def _parse(self, generation: Generation) -> ParsedReply:
        """Parse a sampled reply into content, reasoning and tool calls; the result can always be encoded as JSON.

        A parser may return tool calls that JSON cannot hold; then the whole reply is its plain text.
        """
        ids = generation.output_ids
        # The reader of a stream has been fed with every chunk already.
        parsed = generation.reader.end(() if self.request.stream else ids)
        try:
            orjson.dumps([parsed.content, parsed.reasoning, parsed.tool_calls])
        except TypeError as error:
            problem = f"tool calls that are not JSON: {error}"
            return ParsedReply(content=self.chat.reply_text(ids), errors=(*parsed.errors, problem))
        return attrs.evolve(parsed, tool_calls=self.request.as_sent(parsed.tool_calls))

    def _interaction(self, generation: Generation, first_seq: int, finished_at: float) -> Interaction:
        """Build the interaction that is stored for one finished reply.

        It holds only the prompt's new ids and messages; the earlier ones are in its parent's lineage.
        """
        prompt, chunks, output_ids = generation.prompt, generation.chunks, generation.output_ids
        parent = None if prompt.parent is None else prompt.parent.interaction
        return Interaction(
            id=generation.id,
            record_id=self.session.record_id,
            seq=first_seq + generation.index,
            parent=None if parent is None else parent.id,
            prompt_ids=prompt.new_ids,
            output_ids=output_ids,
            logprobs=generation.logprobs,
            kept=generation.kept,
            versions=_versions(chunks),
            messages=prompt.new_messages,
            output=message_of(generation.parsed),
            tools=self.request.tools,
            sampling=generation.sampling,
            requested=self.requested,
            finish_reason=generation.finish_reason or FinishReason.STOP,
            model=self.request.model,
            api=self.request.api,
            trainable=self.request.trainable,
            cached_tokens=chunks[-1].cached_tokens,
            tool_errors=len(generation.parsed.errors),
            retry_key="" if self.attempt is None else self.attempt.key.text,
            witness=witness(parent.witness if parent else "", prompt.new_ids, output_ids),
            started_at=self.started_at,
            finished_at=finished_at,
        )

    def _choice(self, generation: Generation, interaction: Interaction) -> Choice:
        """Build the client's view of one finished reply."""
        reasoning = generation.parsed.reasoning
        return Choice(
            interaction=interaction,
            prompt_tokens=len(generation.prompt.ids),
            finish_reason=finish_reason_of(interaction),
            stop_string=generation.chunks[-1].stop_string,
            top_logprobs=tuple(chain.from_iterable(chunk.top_logprobs for chunk in generation.chunks)),
            reasoning_tokens=len(self.chat.encode(reasoning)) if reasoning else 0,
            prompt_ids=generation.prompt.ids if self.request.return_token_ids else (),
        )


class _EngineTime:
    """Context of one generation in the engine: lists it as running, always closes its iterator, checks its end.

    `RequestError` (410) if the episode has ended, (503) on a normal exit if the engine aborted the generation.
    `EngineError` if the call is trained and lacks the sampling masks of its top-p or top-k.
    """

    def __init__(self, call: PolicyCall, generation: Generation) -> None:
        self._session = call.session
        self._generation = generation
        trained = call.session.policy.training and call.request.trainable
        self._needs_masks = trained and generation.sampling.truncates
        chunks = call.engine.generate(
            GenerateRequest(
                request_id=generation.id,
                prompt_ids=generation.prompt.ids,
                sampling=generation.sampling,
                session=call.session.record_id,
                group=call.session.group_id,
                stream=call.request.stream,
                top_logprobs=call.request.top_logprobs,
                return_kept=self._needs_masks,
                images=generation.prompt.images,
            )
        )
        # The protocol says AsyncIterator, but closing it must abort the request, so every engine returns a generator.
        self._chunks = cast("AsyncGenerator[Chunk, None]", chunks)

    async def __aenter__(self) -> AsyncGenerator[Chunk, None]:
        # Under one lock with the check: a session that closes now either refuses this generation or aborts it.
        with self._session.lock:
            self._session.check_open()
            self._session.running.add(self._generation.id)
        return self._chunks

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._session.running.discard(self._generation.id)
        await self._chunks.aclose()
        if kind is not None:
            return
        self._session.check_open()
        if self._generation.finish_reason in {None, FinishReason.ABORT}:
            raise RequestError(503, "generation_aborted", "the engine aborted this generation")
        if self._needs_masks and not all(self._generation.kept or (b"",) * len(self._generation.output_ids)):
            sampling = self._generation.sampling
            raise EngineError(
                f"request {self._generation.id}: sampled with top_p {sampling.top_p:g} and top_k {sampling.top_k}, but "
                "the engine returned no sampling masks, without which the learner does not know the distribution; set "
                "sampling.top_p to 1 and sampling.top_k to 0, or use an engine that returns masks"
            )


def _versions(chunks: Sequence[Chunk]) -> Versions:
    if len(chunks) == 1 and chunks[0].ids:
        return ((chunks[0].version, len(chunks[0].ids)),)
    return run_lengths([chunk.version for chunk in chunks for _ in chunk.ids])


def message_of(parsed: ParsedReply) -> Message:
    """Build the assistant's message that the agent receives, with parsing errors as `tool_call_errors`."""
    output: Message = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning:
        output["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        # OpenAI's replies have null, not an empty text, beside tool calls.
        output["content"] = parsed.content or None
        output["tool_calls"] = list(parsed.tool_calls)
    if parsed.errors:
        output["tool_call_errors"] = list(parsed.errors)
    return output


def finish_reason_of(interaction: Interaction) -> Literal["stop", "length", "tool_calls"]:
    """Return the finish reason that the client is told."""
    if interaction.finish_reason is FinishReason.LENGTH:
        return "length"
    return "tool_calls" if "tool_calls" in interaction.output else "stop"
