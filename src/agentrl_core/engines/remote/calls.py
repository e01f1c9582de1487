"""State of one request to a model server: the tokens received so far, and the rest to ask for.

The output of one request may take several calls to the server, because pauses and failures interrupt calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import zlib
from typing import TYPE_CHECKING

import attrs

from agentrl_core.api.kept_tokens import joined
from agentrl_core.api.remote import ServerRequest
from agentrl_core.engines.stopping import Decode, find_stop_string
from agentrl_core.errors import EngineError, UnavailableError
from agentrl_core.types import Chunk, FinishReason, GenerateRequest, run_lengths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.api.remote import ReplyPart, TopLogprobs
    from agentrl_core.engines.jobs import Mailbox
    from agentrl_core.engines.remote.server import RemoteServer

_numbers = itertools.count()
"""Numbers that make the ids of calls unique, also of several calls for one request."""


@attrs.define(kw_only=True, eq=False)
class RemoteCall:
    """A request and its state; owned by its mailbox's event loop, except for what the engine's lock guards."""

    request: GenerateRequest
    mailbox: Mailbox
    limit: int
    """Largest number of tokens, prompt and output together."""
    decode: Decode | None
    """Function from ids to text; set if the request has stop strings."""
    seed: int
    """Seed of the engine, which the random numbers depend on besides the request's own."""
    task: asyncio.Task[None] = attrs.field(init=False)
    server: RemoteServer | None = None
    """The server on which the request is placed; guarded by the engine's lock."""
    aborted: bool = False
    ids: list[int] = attrs.field(factory=list)
    logprobs: list[float] = attrs.field(factory=list)
    versions: list[int] = attrs.field(factory=list)
    top: list[TopLogprobs] = attrs.field(factory=list)
    kept: list[bytes] = attrs.field(factory=list)
    """One sampling mask per token, if the server returns any."""
    reason: FinishReason | None = None
    stop_string: str | None = None
    cached: int | None = None
    failures: int = 0
    """Consecutive calls without a whole reply."""
    outlived_absence: bool = False
    """Whether the server was away during those failures; then they say nothing about this request."""
    empty_aborts: int = 0
    """Consecutive calls that the server aborted before the first token."""
    _sent: int = 0
    """Output tokens already returned by `take_chunks`."""
    _seam: int = 0
    """Index in the output at which the running call began."""
    _waiter: asyncio.Future[None] | None = None
    _interruptible: bool = False
    _interrupted: bool = False

    @property
    def whole(self) -> bool:
        """Whether the output must be sampled in one call, because a grammar would start again in the middle of a text.

        Its logprobs are then requested separately, without the constraint that excluded tokens; not so if sampling
        masks came with them, over which they are renormalised.
        """
        return self.request.sampling.grammar is not None or self.request.sampling.min_tokens > 0

    @property
    def remaining(self) -> int:
        """Tokens that may still be sampled."""
        return self.limit - len(self.request.prompt_ids) - len(self.ids)

    def next_request(self, model: str) -> ServerRequest:
        """Return the next call to the server: the whole request, or the rest of its output."""
        if self.whole:
            self.ids, self.logprobs, self.versions, self.top, self.kept = [], [], [], [], []
        request, sampling = self.request, self.request.sampling
        self._seam = len(self.ids)
        # The rest of an output gets another seed, because the same seed would repeat the first random numbers.
        seed = zlib.crc32(f"{self.seed}/{sampling.seed}/{self._seam}".encode()) & 0x7FFFFFFF
        return ServerRequest(
            # The number comes first, and ends with a dash: no id is a prefix of another one (see `ServerRequest.id`).
            id=f"{next(_numbers)}-{request.request_id}",
            request_id=request.request_id,
            prompt_ids=[*request.prompt_ids, *self.ids] if self.ids else request.prompt_ids,
            max_tokens=self.remaining,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            stop=sampling.stop,
            stop_token_ids=sampling.stop_token_ids,
            min_tokens=sampling.min_tokens,
            ignore_eos=sampling.ignore_eos,
            seed=seed,
            grammar=sampling.grammar,
            top_logprobs=request.top_logprobs,
            return_kept=request.return_kept and sampling.truncates,
            stream=request.stream and not self.whole,
            model=model,
        )

    def accept(self, part: ReplyPart, versions: Sequence[int]) -> None:
        """Append received tokens, and record whether they end the output.

        Raises `UnavailableError` for more tokens than requested, `EngineError` if the server returns to older weights.
        """
        if len(part.ids) > self.remaining:
            raise UnavailableError(
                f"request {self.request.request_id}: the server sent {len(part.ids)} tokens, expected at most "
                f"{self.remaining}",
                status=502,
            )
        if versions and versions[0] < (self.versions or [0])[-1]:
            raise EngineError(
                f"request {self.request.request_id}: the server went back from weights of version "
                f"{self.versions[-1]} to {versions[0]}; only one run may load weights into it"
            )
        before = len(self.ids)
        self.ids += part.ids
        self.logprobs += part.logprobs
        self.versions += versions
        self.top += part.top_logprobs
        self.kept = list(joined([tuple(self.kept), part.kept], [before, len(part.ids)]))
        if self.cached is None:
            self.cached = part.cached_tokens
        self.empty_aborts = 0 if self.ids[self._seam :] else self.empty_aborts
        # The server finds stop strings itself, except those that began before an interruption.
        if self._seam and self.decode is not None and self._cut_at_stop_string(before, self.decode):
            return
        if part.finish_reason is FinishReason.ABORT:
            self.end_where_due()
        elif part.finish_reason is not None:
            self.reason, self.stop_string = part.finish_reason, part.stop_string
            if self.reason is FinishReason.STOP and self.stop_string is None:
                self.stop_string = self._completed_stop_string()

    def _completed_stop_string(self) -> str | None:
        """Return the stop string that the last token completed; None if a stop token or nothing ended the output."""
        if self.decode is None or not self.ids or self.ids[-1] in self.request.sampling.stop_token_ids:
            return None
        return find_stop_string(self.request.sampling.stop, self.ids, 0, self.decode)

    def end_where_due(self) -> None:
        """End an interrupted output if its last token was already the final one.

        An abort or a lost reply may have cut off the finish reason only.
        """
        if self.reason is not None or not self.ids:
            return
        sampling = self.request.sampling
        if self.ids[-1] in sampling.stop_token_ids:
            self.reason = FinishReason.STOP
        elif (found := self._completed_stop_string()) is not None:
            self.reason, self.stop_string = FinishReason.STOP, found
        elif self.remaining <= 0:
            self.reason = FinishReason.LENGTH

    def _cut_at_stop_string(self, before: int, decode: Decode) -> bool:
        """End the output at a stop string that spans an interruption: the server saw its beginning only as prompt."""
        stop = self.request.sampling.stop
        reach = max(len(text.encode()) for text in stop)
        for count in range(before + 1, min(len(self.ids), self._seam + reach) + 1):
            found = find_stop_string(stop, self.ids[:count], 0, decode)
            if found is not None:
                for values in (self.ids, self.logprobs, self.versions, self.top, self.kept):
                    del values[count:]
                self.reason, self.stop_string = FinishReason.STOP, found
                return True
        return False

    def take_chunks(self, version_now: int) -> list[Chunk]:
        """Return the new tokens, one chunk per policy version; the last has the finish reason, if there is one."""
        if self.whole and self.reason is None:
            return []
        chunks, first, total = [], self._sent, len(self.versions)
        runs = run_lengths(self.versions[first:])
        if self.reason is not None:
            runs = runs or ((version_now, 0),)
        for version, count in runs:
            end = first + count
            ended = self.reason is not None and end == total
            chunks.append(
                Chunk(
                    ids=tuple(self.ids[first:end]),
                    logprobs=tuple(self.logprobs[first:end]),
                    version=version,
                    finish_reason=self.reason if ended else None,
                    stop_string=self.stop_string if ended else None,
                    cached_tokens=(self.cached or 0) if ended else 0,
                    top_logprobs=tuple(self.top[first:end]),
                    kept=tuple(self.kept[first:end]),
                )
            )
            first = end
        self._sent = first
        return chunks

    # Waiting, and interruptions by `wake`.

    async def wait(self, timeout_s: float | None = None) -> None:
        """Sleep until `wake` is called, at most for `timeout_s`."""
        self._waiter = self.mailbox.loop.create_future()
        await asyncio.wait([self._waiter], timeout=timeout_s)
        self._waiter = None

    def wake(self) -> None:
        """End `wait`, and cancel the running call to the server; callable from any thread."""
        with contextlib.suppress(RuntimeError):  # raised by a closed loop, in which nothing waits any more
            self.mailbox.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._interruptible and not self._interrupted:
            self._interrupted = True
            self.task.cancel()

    def __enter__(self) -> None:
        self._interruptible, self._interrupted = True, False

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        """Suppress a cancellation by `wake`, and only that."""
        self._interruptible = False
        if not self._interrupted:
            return False
        # The consumer may have cancelled the task as well: `uncancel` returns how many other requests remain.
        cancelled_otherwise = self.task.uncancel()
        return kind is asyncio.CancelledError and not cancelled_otherwise
