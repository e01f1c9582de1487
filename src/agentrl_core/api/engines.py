"""What an inference engine must do: ids in, ids with logprobs and versions out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from agentrl_core.api.weights import WeightSource
    from agentrl_core.types import Chunk, GenerateRequest


class Engine(Protocol):
    """Samples tokens from the current policy. Loop-agnostic: callable from several threads and event loops.

    Results do not depend on batch composition: the random numbers of a request come from its own seed.
    Every implementation passes `agentrl_testing.EngineSuite`.
    """

    @property
    def version(self) -> int:
        """Policy version of the weights in use."""
        ...

    @property
    def context_length(self) -> int:
        """Most tokens, prompt and output together, of one request."""
        ...

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds spent in the engine's own thread so far; 0 where it runs elsewhere."""
        ...

    def start(self) -> None:
        """Begin to serve; called once."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """Sample until a stop token, a stop string, `max_tokens` or an abort; the last chunk has the reason.

        Closing the iterator or cancelling its consumer aborts the request. A prompt that leaves no room for
        one token, sampling options out of range, more than 20 `top_logprobs`, images that the model cannot see, and
        a grammar that the engine cannot hold to raise `UnservableError`: that call fails, and nothing else does.
        Any other `EngineError` ends the run.

        Under a grammar, stop tokens are sampled where the output is complete, and only there. Where nothing else
        may follow and the request has no stop tokens, the generation ends with finish reason `stop`.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request with finish reason `abort`; unknown ids are ignored."""
        ...

    async def pause(self) -> None:
        """Return when no decode step is running and none will start."""
        ...

    async def resume(self) -> None:
        """Go on after `pause`."""
        ...

    async def load_weights(self, version: int, source: WeightSource) -> None:
        """Switch to new weights between two decode steps; running requests go on with them.

        Prefix caches of the old weights are dropped. `version` must exceed the current one.
        """
        ...

    def close(self) -> None:
        """Abort what runs and free threads and memory; idempotent."""
        ...
