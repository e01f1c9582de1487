"""One LLM call as the gateway's core knows it, whatever API the agent spoke: what was asked, what came out.

A dialect (`openai_chat`) translates between these values and its wire format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentrl_core.errors import RequestError
    from agentrl_core.types import Interaction, Message

Decode: TypeAlias = "Callable[[Sequence[int]], str]"
"""Text of token ids."""


@attrs.frozen(kw_only=True)
class ChatRequest:
    """A checked request. Numbers are as the agent gave them; None where it gave none."""

    messages: tuple[Message, ...]
    """In OpenAI's shape: content is text, unknown keys are gone, `arguments` is JSON text."""
    tools: tuple[Mapping[str, Any], ...] = ()
    parse_tools: bool = False
    """Whether tool calls in the reply are calls, not text."""
    model: str = "default"
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with the usage."""
    logprobs: bool = False
    return_token_ids: bool = False
    ignored: Mapping[str, Any] = attrs.field(factory=dict)
    """Fields that have no effect here, kept for the trace."""


@attrs.frozen(kw_only=True)
class Reply:
    """A finished, stored call."""

    request: ChatRequest
    interaction: Interaction
    prompt_ids: tuple[int, ...]
    """The whole prompt."""
    finish_reason: str
    """`stop`, `length` or `tool_calls`."""

    @property
    def id(self) -> str:
        """Id of the response and of the interaction."""
        return self.interaction.id


@attrs.frozen(kw_only=True)
class Delta:
    """Newly sampled tokens of a stream."""

    text: str
    """May be empty while a character, a tool call or a stop string is incomplete."""
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class StreamWriter(Protocol):
    """Encodes one streamed reply as server-sent events."""

    def begin(self) -> bytes:
        """Encode what comes before the first token."""
        ...

    def delta(self, delta: Delta) -> bytes:
        """Encode new tokens; empty bytes where there is nothing to tell yet."""
        ...

    def end(self, reply: Reply, rest: str) -> bytes:
        """Encode the tail: text that was held back (`rest`), tool calls, finish reason, usage."""
        ...

    def error(self, error: RequestError) -> bytes:
        """Encode a failure in the middle of the stream."""
        ...


class Dialect(Protocol):
    """One API for chatting: parses its requests, builds its replies."""

    id_prefix: str
    """Of response ids, which are the interactions' ids."""

    def parse(self, body: Any, headers: Mapping[str, str]) -> ChatRequest:
        """Check a decoded JSON body; `RequestError` (400) names the field at fault."""
        ...

    def response(self, reply: Reply, decode: Decode) -> dict[str, Any]:
        """Build the body of a reply that is not streamed."""
        ...

    def writer(self, request: ChatRequest, reply_id: str, decode: Decode) -> StreamWriter:
        """Build the encoder of a streamed reply."""
        ...

    def error(self, error: RequestError) -> dict[str, Any]:
        """Build the body of a refusal."""
        ...
