"""One generation on its way through an engine: what was asked, what came out, where the answer goes."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
import random
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import attrs

from agentrl_core.engines.stopping import Decode, find_stop_string
from agentrl_core.errors import EngineError, UnservableError
from agentrl_core.types import Chunk, FinishReason, GenerateRequest, Sampling, run_lengths

if TYPE_CHECKING:
    from agentrl_core.engines.grammars import Constraint


class Mailbox:
    """Hands chunks from the engine's thread to a consumer in any event loop; made in the consumer's loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._arrived: list[Chunk] = []
        self._failure: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def take(self) -> list[Chunk]:
        """Wait for chunks and return them; raise what ended the engine, once all chunks are taken."""
        if not self._arrived and self._failure is None:
            self._waiter = self.loop.create_future()
            await self._waiter
        chunks, self._arrived = self._arrived, []
        if not chunks and self._failure is not None:
            # A new exception each time: one instance raised in several tasks would mix their tracebacks.
            raise copy.copy(self._failure) from self._failure.__cause__
        return chunks

    def put(self, post: list[Chunk] | EngineError) -> None:
        """Leave chunks or the failure; runs in the consumer's loop."""
        if isinstance(post, EngineError):
            self._failure = post
        else:
            self._arrived += post
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


Likeliest = tuple[tuple[int, float], ...]
"""Token ids and logprobs of the likeliest tokens at one position, likeliest first."""

MOST_TOP_LOGPROBS = 20
"""Of one position: as many as OpenAI's API allows."""

Post = tuple[Mailbox, "list[Chunk] | EngineError"]
"""One delivery."""


def deliver(posts: Iterable[Post]) -> None:
    """Send posts to their consumers, waking each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Post]] = {}
    for post in posts:
        by_loop.setdefault(post[0].loop, []).append(post)
    for loop, of_loop in by_loop.items():
        # A closed loop refuses, and has no consumers left.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_put_all, of_loop)


def _put_all(posts: list[Post]) -> None:
    for mailbox, post in posts:
        mailbox.put(post)


@attrs.define(kw_only=True, eq=False)
class Job:
    """A request and its state; belongs to the engine's thread once submitted."""

    request: GenerateRequest
    mailbox: Mailbox
    limit: int
    """Most tokens, prompt and output together."""
    decode: Decode | None
    """Ids to text; given where the request has stop strings."""
    constraint: Constraint | None = None
    """Given where the request has a grammar."""
    vocab_size: int = 0
    """Tokens that the model can sample; given where the engine bars some of them."""
    seed: int = 0
    """The engine's, which goes into the random numbers beside the request's."""
    ids: list[int] = attrs.field(factory=list)
    """Prompt and output so far."""
    logprobs: list[float] = attrs.field(factory=list)
    likeliest: list[Likeliest] = attrs.field(factory=list)
    """Beside each of `logprobs`, where the request asks for them."""
    versions: list[int] = attrs.field(factory=list)
    reason: FinishReason | None = None
    failure: EngineError | None = None
    """Why this job alone cannot go on, where `reason` is set for that."""
    stop_string: str | None = None
    cached: int = 0
    """Prompt tokens taken from the prefix store when the job was admitted."""
    filled: int = 0
    """Tokens whose keys and values are in the job's row of the cache; 0 again after a weight change."""
    _sent: int = 0
    _stop_ids: frozenset[int] = attrs.field(init=False)
    _random: random.Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.ids = list(self.request.prompt_ids)
        self._stop_ids = frozenset(self.request.sampling.stop_token_ids)
        self._random = random.Random(f"{self.seed}/{self.request.sampling.seed}")  # noqa: S311 (sampling, not cryptography)

    @property
    def pending(self) -> int:
        """Tokens whose keys and values are still to be computed."""
        return len(self.ids) - self.filled

    def draw_knobs(self) -> tuple[float, float, float, float]:
        """Return a new random number in [0, 1), temperature, top_p and top_k: called once per output token."""
        sampling = self.request.sampling
        return self._random.random(), sampling.temperature, sampling.top_p, sampling.top_k

    @property
    def barred(self) -> frozenset[int]:
        """Tokens that the next one must not be: those that would end the output before `min_tokens`."""
        return self._stop_ids if self._too_short(len(self.logprobs) + 1) else frozenset()

    def _too_short(self, num_tokens: int) -> bool:
        return num_tokens < self.request.sampling.min_tokens

    def accept(self, token: int, logprob: float, version: int, likeliest: Likeliest = ()) -> None:
        """Append a sampled token and note whether it ends the generation."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if self.request.top_logprobs:
            self.likeliest.append(likeliest[: self.request.top_logprobs])
        if token in self._stop_ids and not self._too_short(len(self.logprobs)):
            self.reason = FinishReason.STOP
        elif self.decode is not None and (found := self._find_stop_string(self.decode)) is not None:
            self.reason, self.stop_string = FinishReason.STOP, found
        elif self.constraint is not None and self._completes(self.constraint, token):
            self.reason = FinishReason.STOP
        elif len(self.ids) >= self.limit:
            self.reason = FinishReason.LENGTH

    def _completes(self, constraint: Constraint, token: int) -> bool:
        """Move the grammar past `token`; return whether that leaves nothing to sample."""
        constraint.advance(token)
        return not self._stop_ids and constraint.exhausted

    def fail(self, fault: str) -> None:
        """End the generation, and this one only, with an error."""
        self.reason = FinishReason.ABORT
        self.failure = UnservableError(f"request {self.request.request_id}: {fault}")

    def _find_stop_string(self, decode: Decode) -> str | None:
        return find_stop_string(self.request.sampling.stop, self.ids, len(self.request.prompt_ids), decode)

    def take_chunks(self, version_now: int) -> list[Chunk]:
        """Return what was not sent yet, one chunk per policy version; the last has the finish reason, if any.

        `version_now` is what a last chunk without tokens carries.
        """
        chunks = []
        first, prompt = self._sent, len(self.request.prompt_ids)
        for version, count in run_lengths(self.versions[first:]):
            ids = tuple(self.ids[prompt + first : prompt + first + count])
            chunk = Chunk(
                ids=ids,
                logprobs=tuple(self.logprobs[first : first + count]),
                version=version,
                top_logprobs=tuple(self.likeliest[first : first + count]),
            )
            chunks.append(chunk)
            first += count
        self._sent = first
        if self.reason is None:
            return chunks
        last = chunks.pop() if chunks else Chunk(ids=(), logprobs=(), version=version_now)
        end = attrs.evolve(last, finish_reason=self.reason, stop_string=self.stop_string, cached_tokens=self.cached)
        return [*chunks, end]


class Host(Protocol):
    """What a batch of jobs sees of its engine."""

    version: int
    """Policy version of the weights in use."""

    def publish(self, jobs: Sequence[Job]) -> None:
        """Send consumers what these jobs have for them."""
        ...

    def attend(self) -> None:
        """Carry out what was asked of the engine since the last step; blocks while it is paused."""
        ...


def check_request(request: GenerateRequest, *, context_length: int, vocab_size: int) -> int:
    """Return the most tokens that prompt and output may reach together.

    Raises `UnservableError` where only this request cannot run, and `EngineError` for token ids that the model does
    not have: they come from another model's tokenizer, which no other request would escape.
    """
    prompt, sampling = request.prompt_ids, request.sampling
    if not prompt:
        raise UnservableError(
            f"request {request.request_id}: the prompt is empty; an engine continues at least one token"
        )
    if len(prompt) >= context_length:
        raise UnservableError(
            f"request {request.request_id}: the prompt has {len(prompt)} tokens and leaves no room for an answer: "
            f"prompt and output together may have {context_length}. Shorten the prompt."
        )
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        raise EngineError(
            f"request {request.request_id}: the prompt has token ids from {min(prompt)} to {max(prompt)}, the model "
            f"knows 0 to {vocab_size - 1}. Does the tokenizer belong to this model?"
        )
    if not 0 <= request.top_logprobs <= MOST_TOP_LOGPROBS:
        raise UnservableError(
            f"request {request.request_id}: top_logprobs {request.top_logprobs}, expected 0 to {MOST_TOP_LOGPROBS}"
        )
    _check_sampling(request.request_id, sampling)
    return min(context_length, len(prompt) + (sampling.max_tokens or context_length))


def _check_sampling(request_id: str, sampling: Sampling) -> None:
    wrong = None
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        wrong = f"temperature {sampling.temperature}, expected 0 or above"
    elif not 0 < sampling.top_p <= 1:
        wrong = f"top_p {sampling.top_p}, expected above 0 and at most 1"
    elif sampling.top_k < 0:
        wrong = f"top_k {sampling.top_k}, expected 0 (all tokens) or above"
    elif sampling.max_tokens is not None and sampling.max_tokens < 1:
        wrong = f"max_tokens {sampling.max_tokens}, expected 1 or above"
    elif sampling.min_tokens < 0:
        wrong = f"min_tokens {sampling.min_tokens}, expected 0 or above"
    elif sampling.min_tokens and sampling.stop:
        wrong = "min_tokens beside stop strings, which could end the output before; leave one of them out"
    elif "" in sampling.stop:
        wrong = "an empty stop string, expected text"
    if wrong is not None:
        raise UnservableError(f"request {request_id}: {wrong}")
