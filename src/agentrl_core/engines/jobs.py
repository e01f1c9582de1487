"""State of one generation in an in-process engine: the request, the tokens so far, and where its output goes.

`Mailbox` and `check_request` serve the engines for model servers, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
import random
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import attrs
import numpy as np

from agentrl_core.engines.stopping import Decode, find_stop_string
from agentrl_core.errors import EngineError, UnservableError
from agentrl_core.types import MOST_TOP_LOGPROBS, Chunk, FinishReason, GenerateRequest, Sampling, run_lengths

if TYPE_CHECKING:
    from agentrl_core.engines.constraints import Constraint


class Mailbox:
    """Passes chunks from the engine's thread to a consumer in any event loop; create it in the consumer's loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._arrived: list[Chunk] = []
        self._failure: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def take(self) -> list[Chunk]:
        """Wait for chunks and return them; once all are taken, raise the error that ended the generation, if any."""
        if not self._arrived and self._failure is None:
            self._waiter = self.loop.create_future()
            await self._waiter
        chunks, self._arrived = self._arrived, []
        if not chunks and self._failure is not None:
            # A copy: one instance raised in several tasks would mix their tracebacks.
            raise copy.copy(self._failure) from self._failure.__cause__
        return chunks

    def put(self, post: list[Chunk] | EngineError) -> None:
        """Append chunks or set the failure, and wake the consumer; must run in the consumer's loop."""
        if isinstance(post, EngineError):
            self._failure = post
        else:
            self._arrived += post
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


Likeliest = tuple[tuple[int, float], ...]
"""Ids and logprobs of the likeliest tokens at one position, likeliest first."""

Post = tuple[Mailbox, "list[Chunk] | EngineError"]
"""One delivery: the mailbox and what to put into it."""


def deliver(posts: Iterable[Post]) -> None:
    """Put posts into their mailboxes; each event loop is woken once only."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Post]] = {}
    for post in posts:
        by_loop.setdefault(post[0].loop, []).append(post)
    for loop, of_loop in by_loop.items():
        # A closed loop raises RuntimeError; it has no consumers left.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_put_all, of_loop)


def _put_all(posts: list[Post]) -> None:
    for mailbox, post in posts:
        mailbox.put(post)


@attrs.define(kw_only=True, eq=False)
class Job:
    """A request and its state; owned by the engine's thread once submitted."""

    request: GenerateRequest
    mailbox: Mailbox
    limit: int
    """Largest number of tokens, prompt and output together."""
    decode: Decode | None
    """Function from ids to text; set if the request has stop strings."""
    constraint: Constraint | None = None
    """State of the request's grammar; set if it has one."""
    vocab_size: int = 0
    """Number of tokens that the model can sample; set if the engine may bar some of them."""
    seed: int = 0
    """Seed of the engine, which the random numbers depend on besides the request's own."""
    ids: list[int] = attrs.field(factory=list)
    """Prompt, and output so far."""
    logprobs: list[float] = attrs.field(factory=list)
    likeliest: list[Likeliest] = attrs.field(factory=list)
    """One entry per entry of `logprobs`, if the request asks for them."""
    kept: list[bytes] = attrs.field(factory=list)
    """One sampling mask per entry of `logprobs`, if `keeps`."""
    versions: list[int] = attrs.field(factory=list)
    reason: FinishReason | None = None
    failure: EngineError | None = None
    """Reason why only this job cannot continue; `reason` is then `abort`."""
    stop_string: str | None = None
    cached: int = 0
    """Prompt tokens that were copied from the prefix store when the job was admitted."""
    filled: int = 0
    """Tokens whose keys and values are in the job's row of the cache; back to 0 after a weight change."""
    _sent: int = 0
    """Output tokens already returned by `take_chunks`."""
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

    @property
    def keeps(self) -> bool:
        """Whether the job returns its sampling masks."""
        return self.request.return_kept and self.request.sampling.truncates

    def draw_knobs(self) -> tuple[float, float, float, float]:
        """Return a new random number in [0, 1), temperature, top_p and top_k.

        Call it exactly once per output token: each call advances the job's random numbers.
        """
        sampling = self.request.sampling
        return self._random.random(), sampling.temperature, sampling.top_p, sampling.top_k

    @property
    def barred(self) -> frozenset[int]:
        """Tokens that must not come next, because they would end the output before `min_tokens`."""
        return self._stop_ids if self._too_short(len(self.logprobs) + 1) else frozenset()

    def _too_short(self, num_tokens: int) -> bool:
        return num_tokens < self.request.sampling.min_tokens

    def accept(self, token: int, logprob: float, version: int, likeliest: Likeliest = (), mask: bytes = b"") -> None:
        """Append a sampled token and record whether it ends the generation."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if self.request.top_logprobs:
            self.likeliest.append(likeliest[: self.request.top_logprobs])
        if self.keeps:
            self.kept.append(mask)
        # The order decides ties: an output whose last token both ends it and fills the limit has stopped.
        if token in self._stop_ids and not self._too_short(len(self.logprobs)):
            self.reason = FinishReason.STOP
        elif self.decode is not None and (found := self._find_stop_string(self.decode)) is not None:
            self.reason, self.stop_string = FinishReason.STOP, found
        elif self.constraint is not None and self._completes(self.constraint, token):
            self.reason = FinishReason.STOP
        elif len(self.ids) >= self.limit:
            self.reason = FinishReason.LENGTH

    def _completes(self, constraint: Constraint, token: int) -> bool:
        """Move the grammar past `token`; return whether nothing is left to sample."""
        constraint.advance(token)
        return not self._stop_ids and constraint.exhausted

    def fail(self, fault: str) -> None:
        """End this generation, and only this one, with an error."""
        self.reason = FinishReason.ABORT
        self.failure = UnservableError(f"request {self.request.request_id}: {fault}")

    def _find_stop_string(self, decode: Decode) -> str | None:
        return find_stop_string(self.request.sampling.stop, self.ids, len(self.request.prompt_ids), decode)

    def take_chunks(self, version_now: int) -> list[Chunk]:
        """Return the new tokens, one chunk per policy version; the last has the finish reason, if there is one.

        `version_now` is the version of a last chunk without tokens.
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
                kept=tuple(self.kept[first : first + count]),
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
    """Interface of the engine that a batch of jobs uses."""

    version: int
    """Policy version of the weights in use."""

    def publish(self, jobs: Sequence[Job]) -> None:
        """Send consumers the new chunks, or the failure, of these jobs."""
        ...

    def attend(self) -> None:
        """Run the commands that were given to the engine since the last step; blocks while it is paused."""
        ...


def check_request(request: GenerateRequest, *, context_length: int, vocab_size: int) -> int:
    """Return the largest number of tokens that prompt and output may have together.

    Raises `UnservableError` if only this request cannot be served. Raises `EngineError`, which ends the run, for token
    ids that the model does not have: then the tokenizer belongs to another model, and all other requests would fail
    too.
    """
    prompt, sampling = request.prompt_ids, request.sampling
    if not prompt:
        raise UnservableError(
            f"request {request.request_id}: the prompt is empty; an engine needs at least one token to continue from"
        )
    if len(prompt) >= context_length:
        raise UnservableError(
            f"request {request.request_id}: the prompt has {len(prompt)} tokens and leaves no room for an answer: "
            f"prompt and output together may have {context_length}. Shorten the prompt."
        )
    if not _are_ids(prompt, vocab_size):
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


def _are_ids(prompt: Sequence[int], vocab_size: int) -> bool:
    """Return whether all of a prompt are token ids of a model; as fast as a copy, because every call pays for it."""
    try:
        packed = struct.pack(f"={len(prompt)}I", *prompt)
    except struct.error:
        # Below 0, or beyond 32 bits.
        return False
    return int(np.frombuffer(packed, dtype=np.uint32).max()) < vocab_size


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
        wrong = "min_tokens together with stop strings, which could end the output earlier; leave one of them out"
    elif "" in sampling.stop:
        wrong = "an empty stop string, expected text"
    if wrong is not None:
        raise UnservableError(f"request {request_id}: {wrong}")
