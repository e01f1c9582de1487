"""Engines that repeat a stored episode: they answer each prompt with the output that was sampled for it.

A replay needs no weights and no torch. The first prompt that the episode does not contain ends it, unless a live engine
is there to go on from a certain call.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

import attrs

from agentrl_core.data.comparison import shared_tokens
from agentrl_core.errors import EngineError
from agentrl_core.types import Chunk, FinishReason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from agentrl_core.api.engines import Engine
    from agentrl_core.api.weights import WeightSource
    from agentrl_core.types import Episode, GenerateRequest, Interaction, Sampling


@attrs.frozen(kw_only=True)
class Divergence:
    """The first prompt that differs from the recorded ones."""

    call: int
    """1-based number of the call in the replay."""
    expected: Interaction | None
    """Recorded call that the prompt has most of its beginning in common with; None if all were repeated already."""
    expected_ids: tuple[int, ...]
    """Prompt of `expected`. [T]."""
    actual_ids: tuple[int, ...]
    """Prompt of the replay. [T]."""

    @property
    def token(self) -> int:
        """Position of the first token that differs, or the length of the shorter prompt."""
        return shared_tokens(self.expected_ids, self.actual_ids)


class ReplayEngine:
    """Engine that answers with the recorded outputs of `episode`, each once, whatever the order of the calls.

    Calls with equal prompts get their outputs in the order in which they began. `decode` turns ids into text; it finds
    the stop string that ended an output.
    """

    cpu_seconds = 0.0

    def __init__(self, episode: Episode, *, context_length: int, decode: Callable[[Sequence[int]], str]) -> None:
        self.version = 0
        self.context_length = context_length
        self.diverged: concurrent.futures.Future[Divergence] = concurrent.futures.Future()
        """Done at the first prompt that the episode does not contain."""
        self.answered: list[tuple[Interaction, GenerateRequest]] = []
        """Recorded calls in the order in which the replay made them, with the replay's requests."""
        self._decode = decode
        self._lock = threading.Lock()
        """Calls come from several event loops."""
        sampled = [item for item in episode.interactions if not item.upstream]
        self._left = [
            (episode.full_ids(item)[: -len(item.output_ids) or None], item)
            for item in sorted(sampled, key=lambda item: (item.started_at, item.seq))
        ]

    @property
    def left(self) -> list[Interaction]:
        """Recorded calls that the replay has not made."""
        return [item for _, item in self._left]

    def start(self) -> None:
        """Do nothing: the engine is ready."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """Yield the recorded output of the request's prompt; `EngineError` if there is none."""
        item = self._take(request)
        place = 0
        for version, count in item.versions:
            yield self._chunk(request, item, place, place + count, version)
            place += count
        stop = item.finish_reason is FinishReason.STOP and self._stop_string(item)
        yield Chunk(
            ids=(),
            logprobs=(),
            version=item.versions[-1][0] if item.versions else self.version,
            finish_reason=item.finish_reason,
            stop_string=stop or None,
            cached_tokens=item.cached_tokens,
        )

    def _take(self, request: GenerateRequest) -> Interaction:
        prompt = request.prompt_ids
        with self._lock:
            found = next((place for place, (ids, _) in enumerate(self._left) if ids == prompt), None)
            if found is not None:
                _, item = self._left.pop(found)
                self.answered.append((item, request))
                return item
            # `max` returns the first of equals: the recorded call that came next.
            nearest = max(self._left, key=lambda pair: shared_tokens(pair[0], prompt), default=None)
            ids, expected = nearest or ((), None)
            if not self.diverged.done():
                call = len(self.answered) + 1
                self.diverged.set_result(Divergence(call=call, expected=expected, expected_ids=ids, actual_ids=prompt))
        raise EngineError("the replay made a call that the episode does not contain")

    def _chunk(self, request: GenerateRequest, item: Interaction, start: int, end: int, version: int) -> Chunk:
        ids, logprobs = item.output_ids[start:end], item.logprobs[start:end]
        # Only the sampled tokens' own logprobs are stored.
        likeliest = tuple(((token, value),) for token, value in zip(ids, logprobs, strict=True))
        top = likeliest if request.top_logprobs else ()
        return Chunk(ids=ids, logprobs=logprobs, version=version, top_logprobs=top, kept=item.kept[start:end])

    def _stop_string(self, item: Interaction) -> str | None:
        """Return the stop string that comes first in an output; it is not stored."""
        if not item.sampling.stop:
            return None
        text = self._decode(item.output_ids)
        found = min(((at, string) for string in item.sampling.stop if (at := text.find(string)) >= 0), default=None)
        return None if found is None else found[1]

    async def abort(self, request_id: str) -> None:
        """Do nothing: an output is complete at once."""

    async def pause(self) -> None:
        """Do nothing."""

    async def resume(self) -> None:
        """Do nothing."""

    async def load_weights(self, version: int, source: WeightSource) -> None:  # noqa: ARG002 (it has no weights)
        """Refuse: a recorded episode has its policy versions already."""
        raise EngineError(f"cannot load weights of version {version}: the engine repeats a recorded episode")

    def close(self) -> None:
        """Do nothing."""


class ResamplingEngine(ReplayEngine):
    """Engine that repeats the calls of `episode` before call `turn`, and has `live` answer all others.

    `live`, which the caller starts and closes, samples with weights of `version`. With `seed` it draws other tokens
    than with the requests' own seeds.
    """

    def __init__(
        self,
        episode: Episode,
        *,
        turn: int,
        live: Engine,
        version: int,
        seed: int | None,
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        super().__init__(episode, context_length=live.context_length, decode=decode)
        self.version = version
        self._live, self._seed = live, seed
        # Prompts of calls that are no divergence although no call before `turn` has them.
        self._sampled = [ids for ids, item in self._left if item.seq >= turn]
        self._left = [(ids, item) for ids, item in self._left if item.seq < turn]

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """Yield the recorded output of the request's prompt, or what the live engine samples."""
        if self._is_recorded(request.prompt_ids):
            async for chunk in super().generate(request):
                yield chunk
            return
        if self._seed is not None:
            request = attrs.evolve(request, sampling=_reseeded(request.sampling, self._seed))
        # Every engine returns a generator, because closing it must abort the request.
        async with aclosing(cast("AsyncGenerator[Chunk, None]", self._live.generate(request))) as chunks:
            async for chunk in chunks:
                yield attrs.evolve(chunk, version=self.version)

    def _is_recorded(self, prompt: tuple[int, ...]) -> bool:
        """Return False for a call that the live engine answers.

        A prompt that is not recorded is a divergence as long as recorded calls are left, unless it is that of a later
        recorded call, or continues one that was sampled now.
        """
        with self._lock:
            if any(ids == prompt for ids, _ in self._left):
                return True
            new = not self._left or any(prompt[: len(ids)] == ids for ids in self._sampled)
            if new:
                self._sampled.append(prompt)
            return not new

    async def abort(self, request_id: str) -> None:
        """End a call of the live engine."""
        await self._live.abort(request_id)


def _reseeded(sampling: Sampling, seed: int) -> Sampling:
    """Return the sampling parameters with a seed that depends on their own and on `seed`."""
    digest = hashlib.blake2b(repr((seed, sampling.seed)).encode(), digest_size=8).digest()
    return attrs.evolve(sampling, seed=int.from_bytes(digest, "big") >> 1)
