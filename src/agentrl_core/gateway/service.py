"""Answer LLM calls, whatever API they came by: continue the conversation, sample, store, reply.

Nothing here belongs to one event loop: calls run on the loop of whoever makes them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
import uuid
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, cast

import attrs
import orjson

from agentrl_core.chat.parsers.base import ParsedReply
from agentrl_core.errors import RequestError
from agentrl_core.gateway.exchange import ChatRequest, Reply
from agentrl_core.gateway.ledger import Prompt, build_prompt
from agentrl_core.gateway.metering import metered
from agentrl_core.gateway.sampling import call_seed
from agentrl_core.types import Chunk, FinishReason, GenerateRequest, Interaction, Message, Sampling, run_lengths

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from agentrl_core.chat.facade import Chat
    from agentrl_core.engines.base import Engine
    from agentrl_core.gateway.sessions import Session
    from agentrl_core.stores.base import Store


@attrs.define(kw_only=True, eq=False)
class Call:
    """One LLM call on its way."""

    id: str
    session: Session
    request: ChatRequest
    prompt: Prompt
    sampling: Sampling
    requested: Mapping[str, Any]
    started_at: float
    chunks: list[Chunk] = attrs.field(factory=list, init=False)
    """What was sampled so far; once the call is complete, the last one has the finish reason."""

    def add(self, chunk: Chunk) -> None:
        """Append sampled tokens; refused once the episode has ended."""
        self.session.check_open()
        self.chunks.append(chunk)

    @property
    def output_ids(self) -> tuple[int, ...]:
        """All sampled tokens. [T]."""
        return tuple(chain.from_iterable(chunk.ids for chunk in self.chunks))


class _Generation:
    """A call's time in the engine: known to its session while it runs, closed whatever happens, checked at its end."""

    def __init__(self, engine: Engine, call: Call) -> None:
        self._call = call
        request = GenerateRequest(
            request_id=call.id,
            prompt_ids=call.prompt.ids,
            sampling=call.sampling,
            session=call.session.record_id,
            group=call.session.group_id,
            stream=call.request.stream,
        )
        # An engine's iterator is closed to abort its request, so it is a generator.
        self._chunks = cast("AsyncGenerator[Chunk, None]", engine.generate(request))

    async def __aenter__(self) -> AsyncGenerator[Chunk, None]:
        self._call.session.running.add(self._call.id)
        return self._chunks

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._call.session.running.discard(self._call.id)
        await self._chunks.aclose()
        if kind is not None:
            return
        self._call.session.check_open()
        last = self._call.chunks[-1].finish_reason if self._call.chunks else None
        if last is None or last is FinishReason.ABORT:
            raise RequestError(503, "generation_aborted", "the engine aborted this generation")


class PolicyService:
    """Samples from the policy on behalf of sessions."""

    def __init__(
        self,
        *,
        engine: Engine,
        chat: Chat,
        store: Store,
        run_id: str,
        history: Literal["exact", "template"],
        seed: int,
        add_cpu: Callable[[float], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.chat = chat
        self._engine = engine
        self._store = store
        self._run_id = run_id
        self._history = history
        self._seed = seed
        self._add_cpu = add_cpu
        self._clock = clock
        self._lock = threading.Lock()
        self.calls = 0
        """Calls finished and stored."""
        self.forced_temperatures = 0
        """Calls that asked for another temperature and got the policy's."""

    def begin(self, session: Session, request: ChatRequest, id_prefix: str) -> Call:
        """Prepare a call up to the ids that the engine will see; `RequestError` where it cannot be made."""
        session.check_open()
        prompt = build_prompt(self.chat, request, session.ledger, self._history)
        if not prompt.ids:
            raise RequestError(
                400, "invalid_messages", "the chat template made an empty prompt of these messages", param="messages"
            )
        room = self._engine.context_length - len(prompt.ids)
        if room < 1:
            raise RequestError(
                400,
                "context_length_exceeded",
                f"This model's maximum context length is {self._engine.context_length} tokens. However, your messages "
                f"resulted in {len(prompt.ids)} tokens. Please reduce the length of the messages.",
                param="messages",
            )
        decision = session.policy.decide(request, room=room)
        with session.lock:
            seed = call_seed(self._seed, *session.seed_key, session.num_calls)
            session.num_calls += 1
        with self._lock:
            self.forced_temperatures += decision.forced
        return Call(
            id=f"{id_prefix}{uuid.uuid4().hex}",
            session=session,
            request=request,
            prompt=prompt,
            sampling=attrs.evolve(decision.sampling, seed=seed),
            requested=decision.requested,
            started_at=self._clock(),
        )

    async def sample(self, call: Call) -> AsyncGenerator[Chunk, None]:
        """Run the call in the engine; closing or cancelling it aborts the generation, and nothing is stored."""
        async with _Generation(self._engine, call) as chunks:
            async for chunk in chunks:
                call.add(chunk)
                yield chunk

    async def complete(self, call: Call) -> Reply:
        """Do all of a call that is not streamed."""
        async with _Generation(self._engine, call) as chunks:
            async for chunk in chunks:
                call.add(chunk)
        return await self.finish(call)

    async def finish(self, call: Call) -> Reply:
        """Parse and store a call that was sampled to its end; the reply may be sent when this returns."""
        session, finished_at = call.session, self._clock()
        ids = call.output_ids
        parsed = self._parse(call, ids)
        output: Message = {"role": "assistant", "content": parsed.content}
        if parsed.tool_calls:
            output = {"role": "assistant", "content": parsed.content or None, "tool_calls": list(parsed.tool_calls)}
        stored: concurrent.futures.Future[None] = concurrent.futures.Future()
        with session.lock:
            session.check_open()
            seq = session.num_finished
            session.num_finished += 1
            session.writes.add(stored)
        interaction = _interaction(call, seq, ids, output, tool_errors=len(parsed.errors), finished_at=finished_at)
        # The generation is complete: a client that leaves now does not undo it.
        await asyncio.shield(asyncio.ensure_future(metered(self._store_call(call, interaction, stored), self._add_cpu)))
        reason = "length" if interaction.finish_reason is FinishReason.LENGTH else "stop"
        return Reply(
            request=call.request,
            interaction=interaction,
            prompt_ids=call.prompt.ids,
            finish_reason="tool_calls" if parsed.tool_calls and reason == "stop" else reason,
        )

    async def abort_all(self, session: Session) -> None:
        """Stop what a closed session still has in the engine, and wait until its finished calls are stored."""
        for request_id in tuple(session.running):
            await self._engine.abort(request_id)
        with session.lock:
            writes = tuple(session.writes)
        for write in writes:
            await asyncio.wrap_future(write)

    def _parse(self, call: Call, ids: tuple[int, ...]) -> ParsedReply:
        text = self.chat.reply_text(ids)
        found = [at for stop in call.sampling.stop if (at := text.find(stop)) >= 0]
        text = text[: min(found, default=len(text))]
        if not call.request.parse_tools:
            return ParsedReply(content=text)
        parsed = self.chat.parse(text)
        try:
            orjson.dumps([parsed.content, parsed.tool_calls])
        except TypeError as error:  # whatever a policy samples and a parser makes of it, the reply can be sent
            return ParsedReply(content=text, errors=(*parsed.errors, f"tool calls that are not JSON: {error}"))
        return parsed

    async def _store_call(self, call: Call, interaction: Interaction, stored: concurrent.futures.Future[None]) -> None:
        session = call.session
        try:
            await self._store.add_interaction(self._run_id, interaction)
            with session.lock:
                session.interactions.append(interaction)
                session.ledger.add(call.prompt, interaction)
            with self._lock:
                self.calls += 1
        finally:
            session.writes.discard(stored)
            stored.set_result(None)


def _interaction(
    call: Call, seq: int, ids: tuple[int, ...], output: Message, *, tool_errors: int, finished_at: float
) -> Interaction:
    parent, last = call.prompt.parent, call.chunks[-1]
    return Interaction(
        id=call.id,
        record_id=call.session.record_id,
        seq=seq,
        parent=None if parent is None else parent.interaction.id,
        prompt_ids=call.prompt.new_ids,
        output_ids=ids,
        logprobs=tuple(chain.from_iterable(chunk.logprobs for chunk in call.chunks)),
        versions=run_lengths([chunk.version for chunk in call.chunks for _ in chunk.ids]),
        messages=call.prompt.new_messages,
        output=output,
        tools=call.request.tools,
        sampling=call.sampling,
        requested=call.requested,
        finish_reason=last.finish_reason or FinishReason.STOP,
        model=call.request.model,
        cached_tokens=last.cached_tokens,
        tool_errors=tool_errors,
        started_at=call.started_at,
        finished_at=finished_at,
    )
