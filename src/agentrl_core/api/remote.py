"""Protocol of model servers: the wire format and the routes of one kind of server, such as SGLang or vLLM.

A package implements `ServerProtocol`, which makes no calls itself, and registers a subclass of
`agentrl_core.RemoteEngine` that names it. The engine of core does the rest, the same for all servers: connections,
retries, a pool of servers, pauses, policy versions and the publication of weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import attrs

from agentrl_core.errors import EngineError, UnavailableError
from agentrl_core.types import FinishReason, Grammar, KeptTokens

if TYPE_CHECKING:
    from agentrl_core.types import GenerateRequest

TopLogprobs: TypeAlias = tuple[tuple[int, float], ...]
"""Ids and logprobs of the likeliest tokens of one position, likeliest first. [K]"""

FINISH_REASONS: Mapping[str, FinishReason] = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
}
"""Names that both SGLang and vLLM give to the end of an output."""


@attrs.frozen(kw_only=True)
class ServerRequest:
    """One call to a server: a whole request, or the rest of an interrupted one."""

    id: str
    """Unique among all calls, and not a prefix of another call's id: SGLang aborts by prefix."""
    request_id: str
    """Id of the engine's request, for messages."""
    prompt_ids: Sequence[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    """0: all tokens."""
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    min_tokens: int = 0
    ignore_eos: bool = False
    seed: int
    grammar: Grammar | None
    top_logprobs: int
    return_kept: bool = False
    """Whether top-p or top-k apply and the sampling masks are needed."""
    stream: bool
    model: str
    """Name under which the server serves the model."""


@attrs.frozen(kw_only=True)
class ReplyPart:
    """Tokens that a reply, or one event of a stream, adds to the earlier ones."""

    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[TopLogprobs, ...] = ()
    labels: tuple[str, ...] = ()
    """The server's name for the weights that sampled each token; empty if it does not tell. [T]"""
    past_labels: tuple[str, ...] = ()
    """The same for the tokens of the earlier events, if the server tells it only at the end of a stream."""
    finish_reason: FinishReason | None = None
    kept: KeptTokens = ()
    """Sampling masks of `ids`, if the server tells them; `logprobs` are then renormalised over them. [T]"""
    stop_string: str | None = None
    """The stop string that ended the output; None also if the server does not tell, then it is looked up."""
    cached_tokens: int | None = None


@attrs.frozen(kw_only=True)
class Served:
    """Self-description of a server."""

    model: str
    context_length: int | None = None
    label: str | None = None
    """The server's name for the weights in use; None if it has no names for weights."""
    model_path: str = ""
    """Directory that the weights were loaded from."""
    takes_weights: bool = True
    """Whether it can load new weights while it runs."""
    has_raw_logprobs: bool = False
    """Whether its logprobs ignore the temperature."""
    returns_kept: bool = False
    """Whether it returns sampling masks with every output (vLLM's `--return-sampling-mask`)."""
    notice: str = ""
    """Message to the user about this server; empty if there is nothing to say."""


@attrs.frozen(kw_only=True)
class Command:
    """A control call, sent as POST. It must be repeatable: it is sent again if its reply is lost.

    Those of a transfer (`agentrl_core.api.publishers`) are sent once.
    """

    path: str
    body: Mapping[str, Any] = attrs.field(factory=dict)
    expected: Mapping[str, Any] = attrs.field(factory=dict)
    """Fields that the reply must have, for routes that tell a failure with status 200."""


@attrs.frozen(kw_only=True)
class ServerLaunch:
    """One server to start on this machine, in words that all kinds of servers share (see `ServerProgram`)."""

    python: str
    """Interpreter of the environment that the server is installed in."""
    model_dir: Path
    """Directory with the policy's first weights."""
    host: str
    port: int
    device: Literal["cpu", "cuda"]
    tp: int = 1
    """Number of GPUs that share the model (tensor parallelism)."""
    dtype: Literal["float32", "bfloat16"]
    context_length: int | None = None
    """Largest number of tokens of one request; None: the model's."""
    gpu_memory: float | None = None
    """Share of each GPU's memory that the server may take, 0 to 1; None: the server's default."""


@attrs.frozen(kw_only=True)
class ServerCommand:
    """Command line of a server, and the variables that it needs in its environment."""

    argv: tuple[str, ...]
    environ: Mapping[str, str] = attrs.field(factory=dict)
    """Set only where the user has not set them."""
    python_path: tuple[Path, ...] = ()
    """Folders that come first in the server's PYTHONPATH."""


class ServerProgram(Protocol):
    """Start of one kind of server on this machine, for `engine: {launch: …}`; an engine names it as `program`."""

    @property
    def ready_path(self) -> str:
        """Route that answers with status 200 once the server takes requests."""
        ...

    def command(self, launch: ServerLaunch) -> ServerCommand:
        """Return the command line of a server that returns what training needs, and that listens at `launch.host`."""
        ...


class ServerCalls(Protocol):
    """Calls by which `ServerProtocol.describe` looks at a server; they raise `EngineError` for any failure."""

    async def get(self, path: str) -> Mapping[str, Any] | None:
        """Return the JSON object at `path`; None if the server has no such route."""
        ...

    async def post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the JSON object of the reply; None if the server has no such route."""
        ...


class ServerProtocol(Protocol):
    """Wire format and control routes of one kind of server.

    The methods that read replies may raise KeyError, TypeError, IndexError, ValueError or AttributeError for a reply of
    another shape. The engine turns these into an error with the server's address.
    """

    @property
    def name(self) -> str:
        """Name of the server's kind, for messages."""
        ...

    @property
    def path(self) -> str:
        """Route that samples tokens."""
        ...

    async def describe(self, calls: ServerCalls, served: Served) -> Served:
        """Complete what `/v1/models` says about a server, while the engine starts.

        Raises `EngineError` if the server lacks a route that sampling needs.
        """
        ...

    async def workers(self, calls: ServerCalls) -> Sequence[str] | None:
        """Return the addresses of the servers behind a router; None if this is a server itself.

        The engine calls the servers directly, because weights are loaded into each of them.
        """
        ...

    def unservable(self, request: GenerateRequest, served: Served) -> str | None:
        """Return why this server would return other logprobs for `request` than the embedded engine; None if equal.

        Those are the logprobs of the distribution after the temperature, and before top-p, top-k and grammar; with
        sampling masks, those after all of them.
        """
        ...

    def body(self, request: ServerRequest) -> Mapping[str, Any]:
        """Return the body of a sampling request. Raises `UnservableError` for a grammar that the server cannot read."""
        ...

    def part(self, request: ServerRequest, reply: Any, num_seen: int) -> ReplyPart:
        """Read a reply, or one event of a stream; `num_seen` tokens came in earlier events.

        Raises `EngineError` if ids or logprobs are missing (`missing_data`), or do not fit together (`wrong_reply`).
        """
        ...

    def scoring_body(self, request: ServerRequest, output_ids: Sequence[int]) -> Mapping[str, Any]:
        """Return a request for the logprobs of `output_ids` after the prompt, without grammar, at temperature 1."""
        ...

    def scores(self, request: ServerRequest, reply: Any, output_ids: Sequence[int]) -> tuple[float, ...]:
        """Read the logprobs from the reply to `scoring_body`. [T]."""
        ...

    def pause(self) -> Sequence[Command]:
        """Return the commands that end all running requests, with their tokens so far, and hold back new ones."""
        ...

    def resume(self) -> Sequence[Command]:
        """Return the commands that let the server sample again."""
        ...

    def load_weights(self, directory: Path, label: str) -> Sequence[Command]:
        """Return the commands by which a paused server reads a model directory and names these weights `label`.

        They also drop the prefix cache, which holds keys and values of the old weights.
        """
        ...

    def abort(self, call_id: str) -> Sequence[Command]:
        """Return the commands that end the call `ServerRequest.id`; none if the server ends it with its connection."""
        ...


def wrong_reply(request: ServerRequest, message: str) -> UnavailableError:
    """Return the error for one reply that cannot be trusted; none of it is used, but other replies may be sound."""
    return UnavailableError(f"request {request.request_id}: {message}", status=502)


def missing_data(request: ServerRequest, what: str) -> EngineError:
    """Return the error for a server that does not return `what` at all."""
    return EngineError(
        f"request {request.request_id}: the server returns no {what}. Without them it can only be used as an upstream "
        "(gateway.upstreams), never for training."
    )


def version_labels(request: ServerRequest, spans: Sequence[Mapping[str, Any]], num_tokens: int) -> tuple[str, ...]:
    """Return the name of the weights of each token, from spans `{"version", "start", "end"}` of `num_tokens` tokens."""
    # Checked before the labels are built: a wrong span could ask for any number of them.
    if sum(span["end"] - span["start"] for span in spans) != num_tokens:
        raise wrong_reply(
            request, f"the server reports the weight versions {spans!r:.200} for an output of {num_tokens} tokens"
        )
    return tuple(str(span["version"]) for span in spans for _ in range(span["start"], span["end"]))
