"""Sample the policy's replies: build the prompt's token ids, run the engine, store the interactions.

This is the last step before the engine; HTTP and its errors are `answering`'s. A call has three phases: `begin`,
`sample` (or `complete`, which includes the third), `finish`. Calls from several event loops run here at the same time,
so shared state is guarded by locks and futures of `concurrent.futures`, never by asyncio's.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
import time
from collections import Counter
from contextlib import aclosing
from typing import TYPE_CHECKING, Literal, TypeVar, cast

import attrs
import orjson

from agentrl_core.api.tool_parsers import ParsedReply
from agentrl_core.chat.tokenizer import TooManyTokensError
from agentrl_core.errors import ContextLengthError, RequestError
from agentrl_core.gateway.call_types import Reply
from agentrl_core.gateway.generations import Call, Generation, choice_of, message_of
from agentrl_core.gateway.history.ledger import Prompt, build_prompt
from agentrl_core.gateway.history.raw_prompts import raw_prompt
from agentrl_core.gateway.metering import metered
from agentrl_core.gateway.sampling_parameters import NAME_CHARS, call_seed, reply_name
from agentrl_core.types import Chunk, FinishReason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from agentrl_core.api.engines import Engine
    from agentrl_core.api.stores import Store
    from agentrl_core.chat.facade import Chat
    from agentrl_core.chat.replies import ReplyReader
    from agentrl_core.gateway.call_types import ChatRequest, Choice
    from agentrl_core.gateway.sessions import Session
    from agentrl_core.types import Grammar, Interaction

T = TypeVar("T")

_MOST_LOST_CALLS = 10_000
"""Most call numbers that `_count_used` tries beyond the stored ones: calls that began but were aborted or lost."""


class _EngineTime:
    """Context of one generation in the engine: lists it as running, always closes its iterator, checks its end.

    `RequestError` (410) if the episode has ended, (503) on a normal exit if the engine aborted the generation.
    """

    def __init__(self, engine: Engine, call: Call, generation: Generation) -> None:
        self._session = call.session
        self._generation = generation
        # The protocol says AsyncIterator, but closing it must abort the request, so every engine returns a generator.
        self._chunks = cast("AsyncGenerator[Chunk, None]", engine.generate(call.engine_request(generation)))

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


class PolicyService:
    """Samples the policy's replies for the calls of all sessions, and counts them for the run's metrics."""

    def __init__(
        self,
        *,
        engine: Engine,
        chat: Chat,
        store: Store,
        run_id: str,
        history: Literal["exact", "template"],
        most_replies: int,
        unseen_tools: Literal["refuse", "allow"],
        seed: int,
        add_cpu: Callable[[float], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.chat = chat
        self._engine = engine
        self._store = store
        self._run_id = run_id
        self._history = history
        self._most_replies = most_replies
        self._allows_unseen_tools = unseen_tools == "allow"
        self._seed = seed
        self._add_cpu = add_cpu
        self._clock = clock
        self._lock = threading.Lock()
        self.calls = 0
        """Replies finished and stored."""
        self.forced_temperatures = 0
        """Number of calls that asked for another temperature and were sampled at the policy's."""
        self.calls_with_unseen_tools = 0
        """Number of calls whose tools the chat template left out of the prompt."""
        self.without_effect: Counter[str] = Counter()
        """Number of calls whose sampling parameter was ignored, by the parameter's name."""

    def begin(
        self, session: Session, request: ChatRequest, id_prefix: str, prompts: Sequence[Prompt] | None = None
    ) -> Call:
        """Prepare a call: prompt ids, sampling parameters, seeds and ids of its replies; nothing is sampled yet.

        `prompts` is the result of the method `prompts` for this request if it was called before. `RequestError` where
        the request cannot be served.
        """
        session.check_open()
        unseen_tools = self._unseen_tools(request)
        prompts = prompts or self.prompts(session, request)
        room = min(self._room(prompt) for prompt in prompts)
        decision = session.policy.decide(request, room=room)
        grammar = self._grammar(request, prompts[0])
        count = len(prompts) * request.n
        # Numbers are taken after all checks, so a refused call does not shift the seeds and ids of later calls.
        with session.lock:
            first = session.num_calls
            session.num_calls += count
        with self._lock:
            self.forced_temperatures += decision.forced
            self.calls_with_unseen_tools += bool(unseen_tools)
            self.without_effect.update(decision.without_effect)
        call_id = f"{id_prefix}{reply_name(self._seed, session.seed_key, session.twin, first)}"
        generations = tuple(
            Generation(
                id=(reply_id := f"{call_id}.{index}" if index else call_id),
                index=index,
                prompt=(prompt := prompts[index // request.n]),
                sampling=attrs.evolve(
                    decision.sampling,
                    seed=call_seed(self._seed, *session.seed_key, first + index),
                    grammar=grammar,
                ),
                reader=self._reader(request, prompt, decision.sampling.stop, reply_id),
            )
            for index in range(count)
        )
        return Call(
            id=call_id,
            session=session,
            request=request,
            requested={**decision.requested, **unseen_tools},
            generations=generations,
            started_at=self._clock(),
        )

    def _check_replies(self, request: ChatRequest) -> None:
        prompts = max(len(request.prompts), 1)
        if prompts * request.n > self._most_replies:
            raise RequestError(
                400,
                "invalid_value",
                f"{prompts} prompts times n = {request.n} are {prompts * request.n} replies; one request may ask for "
                f"at most {self._most_replies} (gateway.max_replies_per_call)",
                param="n",
            )

    def _unseen_tools(self, request: ChatRequest) -> dict[str, str]:
        """Return the trace's note about tools that the template drops; `RequestError` if such calls are refused."""
        if not request.parse_tools or request.prompts or self.chat.takes_tools:
            return {}
        names = ", ".join(tool["function"]["name"] for tool in request.tools)
        if not self._allows_unseen_tools:
            raise RequestError(
                400,
                "tools_not_supported",
                f"this model's chat template drops tools: the policy would never see {names}. Train a model whose "
                "template has tools, or describe them in the prompt and set gateway.unseen_tools: allow",
                param="tools",
            )
        return {"tools": f"{names}: not in the prompt, as the chat template drops tools"}

    def _grammar(self, request: ChatRequest, prompt: Prompt) -> Grammar | None:
        required = request.tool_choice.mode == "required"
        if request.grammar is None and not required:
            return None
        return self.chat.grammar(
            request.grammar,
            request.callable_tools,
            required=required,
            parallel=request.parallel_tool_calls,
            prompt_ids=prompt.ids,
        )

    def _reader(self, request: ChatRequest, prompt: Prompt, stop: tuple[str, ...], reply_id: str) -> ReplyReader:
        # A raw prompt has no template whose markers for reasoning and calls could be parsed.
        if request.prompts:
            return self.chat.text_reader(stop=stop)
        return self.chat.reader(
            parse_tools=request.parse_tools,
            parallel=request.parallel_tool_calls,
            tools=request.tools,
            stop=stop,
            prompt_ids=prompt.ids,
            reply_id=reply_id,
        )

    def forwarded_id(self, session: Session, id_prefix: str) -> str:
        """Return the id of the next reply of an upstream, which follows from the seed like the policy's."""
        with session.lock:
            number = session.num_forwarded
            session.num_forwarded += 1
        return f"{id_prefix}{self._forwarded_name(session, number)}"

    def _forwarded_name(self, session: Session, number: int) -> str:
        return reply_name(self._seed, session.seed_key, session.twin, "upstream", number)

    def count_forwarded(self, session: Session, interactions: Sequence[Interaction]) -> int:
        """Return how many upstream replies a restored session has begun, derived from the ids of the stored ones."""
        unseen = {item.id.partition(".")[0][-NAME_CHARS:] for item in interactions if item.upstream}
        return _count_used(unseen, functools.partial(self._forwarded_name, session), most=len(interactions))

    def continued(self, session: Session, request: ChatRequest) -> ChatRequest:
        """Return the request with the conversation of its `previous` reply put before its messages."""
        if request.previous is None:
            return request
        return attrs.evolve(request, messages=tuple(session.ledger.conversation(request)))

    def prompts(self, session: Session, request: ChatRequest) -> Sequence[Prompt]:
        """Build the prompts of a request, continuing earlier calls of the session where they match.

        Thread-safe; blocks. A text of megabytes may take seconds, but tokenizing stops soon after the context length.
        `RequestError` if the prompt is empty or too long.
        """
        self._check_replies(request)
        most = self._engine.context_length
        try:
            return self._prompts(session, request, most)
        except TooManyTokensError as error:
            raise ContextLengthError(prompt_tokens=error.tokens, context_length=most, at_least=True) from error

    def _prompts(self, session: Session, request: ChatRequest, most: int) -> Sequence[Prompt]:
        if request.prompts:
            return [raw_prompt(self.chat, prompt, session.ledger.raw, most_tokens=most) for prompt in request.prompts]
        continued = self.continued(session, request)
        prompt = build_prompt(self.chat, continued, session.ledger, self._history, most_tokens=most)
        if not prompt.ids:
            raise RequestError(
                400, "invalid_messages", "the chat template made an empty prompt of these messages", param="messages"
            )
        return [prompt]

    async def sample(self, call: Call) -> AsyncGenerator[tuple[Generation, Chunk], None]:
        """Run a call in the engine and yield chunks as they come, of all its replies.

        Closing or cancelling the iterator aborts the generations, and nothing is stored.
        """
        if len(call.generations) > 1:
            async with aclosing(self._sample_together(call)) as merged:
                async for item in merged:
                    yield item
            return
        (generation,) = call.generations
        async with _EngineTime(self._engine, call, generation) as chunks:
            async for chunk in chunks:
                call.add(generation, chunk)
                yield generation, chunk

    async def complete(self, call: Call) -> Reply:
        """Sample and store a call that is not streamed, and return its reply."""
        if len(call.generations) > 1:
            async with aclosing(self.sample(call)) as chunks:
                async for _ in chunks:
                    pass
        else:
            # The common case skips `sample`: each chunk would pass through one more async generator.
            (generation,) = call.generations
            async with _EngineTime(self._engine, call, generation) as chunks_of_one:
                async for chunk in chunks_of_one:
                    call.add(generation, chunk)
        return await self.finish(call)

    async def finish(self, call: Call) -> Reply:
        """Parse and store a completely sampled call; the reply may be sent when this returns."""
        session, finished_at = call.session, self._clock()
        parsed = [self._read(call, generation) for generation in call.generations]
        stored: concurrent.futures.Future[None] = concurrent.futures.Future()
        # Under one lock with the check: a session that closes now either refuses this call or waits for its write.
        with session.lock:
            session.check_open()
            first = session.num_finished
            session.num_finished += len(parsed)
            session.writes.add(stored)
        interactions = [
            call.interaction(generation, read, message_of(read), seq=first + generation.index, finished_at=finished_at)
            for generation, read in zip(call.generations, parsed, strict=True)
        ]
        choices = tuple(
            choice_of(call, generation, interaction, reasoning_tokens=self._count_reasoning(read))
            for generation, interaction, read in zip(call.generations, interactions, parsed, strict=True)
        )
        reply = Reply(request=call.request, choices=choices)
        # The generation is complete: from now on a disconnect does not undo it, and a retry may get its reply.
        if call.attempt is not None:
            call.attempt.storing = True
        await asyncio.shield(asyncio.ensure_future(metered(self._store_call(call, reply, stored), self._add_cpu)))
        return reply

    def count_calls(self, session: Session, interactions: Sequence[Interaction]) -> int:
        """Return how many calls a restored session has begun, derived from the seeds of the stored ones.

        New calls continue from this number, so that no seed is used twice.
        """
        unseen = {interaction.sampling.seed for interaction in interactions if not interaction.upstream}
        # Call numbers are not stored, but the seeds made from them are.
        seed_of = functools.partial(call_seed, self._seed, *session.seed_key)
        return _count_used(unseen, seed_of, most=len(interactions))

    async def abort_all(self, session: Session) -> None:
        """Abort the running generations of a closed session, and wait until its finished calls are stored."""
        # A copy: generations leave `running` as they are aborted.
        with session.lock:
            running = tuple(session.running)
        for request_id in running:
            await self._engine.abort(request_id)
        with session.lock:
            writes = tuple(session.writes)
        for write in writes:
            await asyncio.wrap_future(write)

    def _room(self, prompt: Prompt) -> int:
        """Return how many tokens fit into the context after a prompt; `ContextLengthError` if none does."""
        room = self._engine.context_length - len(prompt.ids)
        if room < 1:
            raise ContextLengthError(prompt_tokens=len(prompt.ids), context_length=self._engine.context_length)
        return room

    async def _sample_together(self, call: Call) -> AsyncGenerator[tuple[Generation, Chunk], None]:
        """Sample several replies concurrently and yield their chunks as they come; the first failure ends all."""
        arrived: asyncio.Queue[tuple[Generation, Chunk] | Exception | None] = asyncio.Queue()

        async def run(generation: Generation) -> None:
            try:
                async with _EngineTime(self._engine, call, generation) as chunks:
                    async for chunk in chunks:
                        call.add(generation, chunk)
                        arrived.put_nowait((generation, chunk))
            except Exception as error:  # noqa: BLE001 - raised again in the loop below
                arrived.put_nowait(error)
            else:
                arrived.put_nowait(None)

        tasks = [asyncio.ensure_future(metered(run(generation), self._add_cpu)) for generation in call.generations]
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

    def _read(self, call: Call, generation: Generation) -> ParsedReply:
        """Parse a sampled reply into content, reasoning and tool calls; the result can always be encoded as JSON.

        A parser may return tool calls that JSON cannot hold; then the whole reply is its plain text.
        """
        ids = generation.output_ids
        # The reader of a stream has been fed with every chunk already.
        parsed = generation.reader.end(() if call.request.stream else ids)
        try:
            orjson.dumps([parsed.content, parsed.reasoning, parsed.tool_calls])
        except TypeError as error:
            problem = f"tool calls that are not JSON: {error}"
            return ParsedReply(content=self.chat.reply_text(ids), errors=(*parsed.errors, problem))
        return parsed

    def _count_reasoning(self, parsed: ParsedReply) -> int:
        return len(self.chat.encode(parsed.reasoning)) if parsed.reasoning else 0

    async def _store_call(self, call: Call, reply: Reply, stored: concurrent.futures.Future[None]) -> None:
        session, interactions = call.session, [choice.interaction for choice in reply.choices]
        told: tuple[Choice, ...] | None = None
        try:
            for interaction in interactions:
                await self._store.add_interaction(self._run_id, interaction)
            # Only after the store has them: a write that fails must leave no trace in the session.
            with session.lock:
                session.interactions.extend(interactions)
                for generation, interaction in zip(call.generations, interactions, strict=True):
                    session.ledger.add(self.chat, generation.prompt, interaction)
            with self._lock:
                self.calls += len(interactions)
            told = reply.choices
        finally:
            session.writes.discard(stored)
            stored.set_result(None)
            if call.attempt is not None:
                call.attempt.settle(told)


def _count_used(unseen: set[T], of_number: Callable[[int], T], *, most: int) -> int:
    """Return the smallest number above all those whose value is in `unseen`.

    The values are hashes, so numbers are tried from 0 on. There may be gaps: calls that began and were never stored.
    """
    for number in range(most + _MOST_LOST_CALLS):
        if not unseen:
            return number
        unseen.discard(of_number(number))
    return most + _MOST_LOST_CALLS
