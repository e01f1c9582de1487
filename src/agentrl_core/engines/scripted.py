"""A fake engine that returns scripted replies and logs every request with its reply; it needs no torch.

The log is independent evidence of token fidelity: the token ids and log-probabilities that a learner trains must
equal it.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs

from agentrl_core.api.kept_tokens import mask_of
from agentrl_core.engines.jobs import Job, Mailbox, check_request, deliver
from agentrl_core.engines.stopping import load_decode
from agentrl_core.errors import EngineError
from agentrl_core.types import Chunk, FinishReason, GenerateRequest

if TYPE_CHECKING:
    from agentrl_core.api.weights import WeightSource
    from agentrl_core.engines.stopping import Decode

Replies: TypeAlias = Callable[[tuple[int, ...], int], Sequence[int]] | Sequence[Sequence[int]]
"""A function `(prompt_ids, call_index) -> token ids`, or the token ids of each call in order."""


@attrs.frozen(kw_only=True)
class ScriptedCall:
    """One entry of the log."""

    request: GenerateRequest
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: FinishReason


class ScriptedEngine:
    """Engine that generates `replies` token by token, up to a stop id, stop string, `max_tokens` or the context limit.

    A reply that meets none of these ends with finish reason `stop`. Logprobs are a hash of the ids up to their token
    and of the policy version. In `top_logprobs` the first entry is the token's own, and the others are made up, and so
    are sampling masks. The engine ignores grammars and images; the log keeps them with their request. Stop strings need the tokenizer of
    `model_dir`. `seed` has no effect.
    """

    cpu_seconds = 0.0

    def __init__(
        self,
        *,
        replies: Replies,
        model_dir: Path | None = None,
        seed: int = 0,  # noqa: ARG002 (every engine is given one)
        context_length: int = 4096,
        vocab_size: int = 2**31,
    ) -> None:
        self.version = 0
        self.context_length = context_length
        self.log: list[ScriptedCall] = []
        """All generations in the order of their ends."""
        self.weights: list[WeightSource] = []
        """All sources passed to `load_weights`, in order."""
        self._replies = replies
        self._model_dir = model_dir
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        """Held for every token and every change, because callers come from several threads."""
        self._jobs: dict[str, Job] = {}
        self._num_calls = 0
        self._paused = False
        self._ended: str | None = "the engine has not been started"
        self._waiting: list[Mailbox] = []

    def start(self) -> None:
        """Begin to serve."""
        self._ended = None

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """Generate the next reply, as described in `Engine.generate`."""
        limit = check_request(request, context_length=self.context_length, vocab_size=self._vocab_size)
        decode = self._load_decode() if request.sampling.stop else None
        job = Job(request=request, mailbox=Mailbox(), limit=limit, decode=decode)
        index = self._begin(job)
        try:
            for token in self._reply(request, index):
                if not await self._say(job, token):
                    break
                if request.stream and job.reason is None:
                    for chunk in job.take_chunks(self.version):
                        yield chunk
            job.reason = job.reason or FinishReason.STOP
            # Before the last chunk, so that a consumer that has all chunks finds the generation in the log.
            self._finish(job)
            for chunk in job.take_chunks(self.version):
                yield chunk
        finally:
            # For a consumer that leaves early, and for errors; a second call does nothing.
            self._finish(job)

    async def abort(self, request_id: str) -> None:
        """End a request with finish reason `abort`; ignore unknown ids."""
        with self._lock:
            job = self._jobs.get(request_id)
            if job is not None and job.reason is None:
                job.reason = FinishReason.ABORT
        self._wake()

    async def pause(self) -> None:
        """Stop sampling; once this returns, no token is generated until `resume`."""
        with self._lock:
            self._paused = True

    async def resume(self) -> None:
        """Continue sampling after `pause`."""
        with self._lock:
            self._paused = False
        self._wake()

    async def load_weights(self, version: int, source: WeightSource) -> None:
        """Set the version and keep `source` in `weights`, without reading it."""
        with self._lock:
            if version <= self.version:
                raise EngineError(
                    f"cannot load weights of version {version}: the engine has version {self.version}, expected a "
                    "higher one"
                )
            self.version = version
            self.weights.append(source)

    def close(self) -> None:
        """Make running and later requests fail; further calls do nothing."""
        with self._lock:
            self._ended = "the engine was closed"
        self._wake()

    def _begin(self, job: Job) -> int:
        """Register a job and return the index of its call."""
        request_id = job.request.request_id
        with self._lock:
            self._check_alive()
            if request_id in self._jobs:
                raise EngineError(f"request {request_id} is already running")
            self._jobs[request_id] = job
            self._num_calls += 1
            return self._num_calls - 1

    def _reply(self, request: GenerateRequest, index: int) -> Sequence[int]:
        if callable(self._replies):
            return self._replies(request.prompt_ids, index)
        if index >= len(self._replies):
            raise EngineError(f"request {request.request_id}: call {index + 1}, but {len(self._replies)} replies given")
        return self._replies[index]

    async def _say(self, job: Job, token: int) -> bool:
        """Add a token, after a wait if the engine is paused; return whether the job needs more tokens."""
        while True:
            # Without this, one request would run to its end at once, and no abort or weight change could come between.
            await asyncio.sleep(0)
            with self._lock:
                self._check_alive()
                if job.reason is not None:
                    return False
                if not self._paused:
                    logprob = _logprob(job.ids, token, self.version)
                    likeliest = _likeliest(token, logprob, job.request.top_logprobs)
                    job.accept(token, logprob, self.version, likeliest, _mask(job, token))
                    return job.reason is None
                mailbox = Mailbox()
                self._waiting.append(mailbox)
            await mailbox.take()

    def _finish(self, job: Job) -> None:
        """Remove a job and log its generation, with finish reason `abort` if its consumer left; do so only once."""
        request = job.request
        with self._lock:
            if self._jobs.get(request.request_id) is not job:
                return
            del self._jobs[request.request_id]
            generation = ScriptedCall(
                request=request,
                ids=tuple(job.ids[len(request.prompt_ids) :]),
                logprobs=tuple(job.logprobs),
                versions=tuple(job.versions),
                finish_reason=job.reason or FinishReason.ABORT,
            )
            self.log.append(generation)

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        deliver((mailbox, []) for mailbox in waiting)

    def _check_alive(self) -> None:
        if self._ended is not None:
            raise EngineError(self._ended)

    def _load_decode(self) -> Decode:
        if self._model_dir is None:
            raise EngineError("stop strings need a tokenizer: give model_dir")
        return load_decode(self._model_dir)


def _logprob(ids: Sequence[int], token: int, version: int) -> float:
    """Return a number in [-8, 0) that depends only on the arguments."""
    digest = hashlib.blake2b(repr((list(ids), token, version)).encode(), digest_size=4).digest()
    return -8.0 * (int.from_bytes(digest) + 1) / 2**32


def _mask(job: Job, token: int) -> bytes:
    """Return a made-up sampling mask of at most three tokens."""
    count = min(job.request.sampling.top_k or 3, 3)
    return mask_of(left for left, _ in _likeliest(token, 0.0, count)) if job.keeps else b""


def _likeliest(token: int, logprob: float, count: int) -> tuple[tuple[int, float], ...]:
    """Return `count` ids with logprobs: `token` and the ids below it, each half as likely as the one before.

    Below id 0 the ids wrap around to other ids that are not in the list yet.
    """
    ids = max(token + 1, count)
    return tuple(((token - rank) % ids, logprob - rank * math.log(2)) for rank in range(count))
