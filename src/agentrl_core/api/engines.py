"""`Engine`: the protocol of inference engines. Token ids in; token ids, log-probabilities and policy versions out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from agentrl_core.api.weights import Publication, WeightSource
    from agentrl_core.types import Chunk, GenerateRequest


class Engine(Protocol):
    """Samples tokens from the current policy. Callable from several threads and event loops.

    Random numbers come from the request's seed, never from the batch, so results do not depend on what else is sampled;
    logprobs may differ in their last bits. Every implementation passes `agentrl_testing.EngineSuite`.

    An engine may have the method `prepare_weights(version, source)`, a coroutine: it is awaited before `load_weights`
    with the same arguments, while sampling goes on, and does what need not wait for the pause, such as writing files.

    An engine may have the attribute `notice`, a text: a decision of its own that the user should know. It is shown
    once, after `start`; empty for nothing. It may have the attribute `takes_weights`: False if `load_weights` is sure
    to fail, so that a run refuses it before anything is sampled. An engine in front of servers may have `servers`, one
    line about each, which `agentrl doctor` shows.
    """

    @property
    def version(self) -> int:
        """Policy version of the weights in use."""
        ...

    @property
    def context_length(self) -> int:
        """Largest number of tokens of one request, prompt and output together."""
        ...

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds spent in the engine's own thread so far; 0 if the engine runs elsewhere."""
        ...

    def start(self) -> None:
        """Begin to serve; called once."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """Sample until a stop token, a stop string, `max_tokens` or an abort; the last chunk holds the finish reason.

        Closing the iterator or cancelling its consumer aborts the request. `UnservableError` fails this call only. It
        is raised for a prompt that leaves no room for one token, sampling options out of range, more than 20
        `top_logprobs`, images that the model cannot see, and a grammar that the engine cannot enforce. Any other
        `EngineError` ends the run.

        Under a grammar, stop tokens are sampled where the output is complete, and only there. If nothing else may
        follow and the request has no stop tokens, the generation ends with finish reason `stop`.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request with finish reason `abort`; unknown ids are ignored."""
        ...

    async def pause(self) -> None:
        """Wait until no decode step is running; none starts until `resume`."""
        ...

    async def resume(self) -> None:
        """Continue after `pause`."""
        ...

    async def load_weights(self, version: int, source: WeightSource) -> Publication | None:
        """Switch to new weights between two decode steps; running requests continue with them.

        Prefix caches of the old weights are dropped. `version` must exceed the current one. Returns how the weights
        arrived, for the run's metrics; None if the engine measures nothing.
        """
        ...

    def close(self) -> None:
        """Abort running requests and free threads and memory; idempotent."""
        ...


@runtime_checkable
class TakesTurns(Protocol):
    """Optional part of an engine in the learner's process: memory that it lends to the learner for a training step."""

    @property
    def device(self) -> torch.device:
        """Device that the engine computes on."""
        ...

    async def release(self) -> None:
        """Free the memory of keys and values, and sample nothing until `reclaim`; weights may be loaded meanwhile.

        Running requests go on after `reclaim`. Raises `EngineError` if the memory has been released already.
        """
        ...

    async def reclaim(self) -> None:
        """Take the memory again, and go on sampling; raises `EngineError` if it has not been released."""
        ...


@runtime_checkable
class Provable(Protocol):
    """Optional part of an engine that other processes sample for: a proof that they have the policy's weights."""

    async def prove(self, source: WeightSource) -> None:
        """Prove that the engine has these weights already, as those of its current version; called at the start.

        Raises `EngineError` if it has others. Later publications are proven by `load_weights` itself.
        """
        ...
