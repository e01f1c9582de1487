"""Hold the state of one call to the policy while it is sampled, and convert it to what is stored and replied.

`service` drives these objects; `call_types` has the request and the reply, which are independent of sampling.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import attrs

from agentrl_core.gateway.call_types import Choice
from agentrl_core.types import (
    Chunk,
    FinishReason,
    GenerateRequest,
    Interaction,
    Message,
    Sampling,
    Versions,
    run_lengths,
)
from agentrl_core.weights.witness import witness

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.api.tool_parsers import ParsedReply
    from agentrl_core.chat.replies import ReplyReader
    from agentrl_core.gateway.call_types import ChatRequest
    from agentrl_core.gateway.history.ledger import Prompt
    from agentrl_core.gateway.retries import Attempt
    from agentrl_core.gateway.sessions import Session


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
    def finish_reason(self) -> FinishReason | None:
        """Reason why the engine stopped; None while it samples."""
        return self.chunks[-1].finish_reason if self.chunks else None


@attrs.define(kw_only=True, eq=False)
class Call:
    """One call to the policy in progress: the request and the replies that are sampled for it."""

    id: str
    session: Session
    request: ChatRequest
    requested: Mapping[str, Any]
    generations: tuple[Generation, ...]
    """`n` replies for each prompt, in the order of the prompts."""
    started_at: float
    """Time at which the request was prepared, in Unix seconds."""
    attempt: Attempt | None = None
    """Entry by which a retry finds this call; None if its client announces no retries."""

    def add(self, generation: Generation, chunk: Chunk) -> None:
        """Append sampled tokens; `RequestError` (410) once the episode has ended."""
        self.session.check_open()
        generation.chunks.append(chunk)

    def engine_request(self, generation: Generation) -> GenerateRequest:
        """Build the engine's request for one reply."""
        return GenerateRequest(
            request_id=generation.id,
            prompt_ids=generation.prompt.ids,
            sampling=generation.sampling,
            session=self.session.record_id,
            group=self.session.group_id,
            stream=self.request.stream,
            top_logprobs=self.request.top_logprobs,
            images=generation.prompt.images,
        )

    def interaction(
        self, generation: Generation, parsed: ParsedReply, output: Message, *, seq: int, finished_at: float
    ) -> Interaction:
        """Build the interaction that is stored for one finished reply.

        It holds only the prompt's new ids and messages; the earlier ones are in its parent's lineage.
        """
        prompt, chunks, output_ids = generation.prompt, generation.chunks, generation.output_ids
        parent = None if prompt.parent is None else prompt.parent.interaction
        return Interaction(
            id=generation.id,
            record_id=self.session.record_id,
            seq=seq,
            parent=None if parent is None else parent.id,
            prompt_ids=prompt.new_ids,
            output_ids=output_ids,
            logprobs=generation.logprobs,
            versions=_versions(chunks),
            messages=prompt.new_messages,
            output=output,
            tools=self.request.tools,
            sampling=generation.sampling,
            requested=self.requested,
            finish_reason=generation.finish_reason or FinishReason.STOP,
            model=self.request.model,
            api=self.request.api,
            trainable=self.request.trainable,
            cached_tokens=chunks[-1].cached_tokens,
            tool_errors=len(parsed.errors),
            retry_key="" if self.attempt is None else self.attempt.key.text,
            witness=witness(parent.witness if parent else "", prompt.new_ids, output_ids),
            started_at=self.started_at,
            finished_at=finished_at,
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


def choice_of(call: Call, generation: Generation, interaction: Interaction, *, reasoning_tokens: int) -> Choice:
    """Build the client's view of one stored reply."""
    return Choice(
        interaction=interaction,
        prompt_tokens=len(generation.prompt.ids),
        finish_reason=finish_reason_of(interaction),
        stop_string=generation.chunks[-1].stop_string,
        top_logprobs=tuple(chain.from_iterable(chunk.top_logprobs for chunk in generation.chunks)),
        reasoning_tokens=reasoning_tokens,
        prompt_ids=generation.prompt.ids if call.request.return_token_ids else (),
    )
