"""One LLM call as the gateway's core knows it, whatever API the agent spoke: what was asked, what came out.

A dialect (`openai_chat`) translates between these values and its wire format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentrl_core.errors import RequestError
    from agentrl_core.types import Grammar, Interaction, Message

Decode: TypeAlias = "Callable[[Sequence[int]], str]"
"""Text of token ids."""

TopLogprobs: TypeAlias = "tuple[tuple[tuple[int, float], ...], ...]"
"""The likeliest tokens and their logprobs at each position, likeliest first. [T][K]"""


@attrs.frozen(kw_only=True)
class ToolChoice:
    """Whether the reply may, must or must not call tools."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()
    """The tools that may be called; empty: all."""


@attrs.frozen(kw_only=True)
class ChatRequest:
    """A checked request. Numbers are as the agent gave them; None where it gave none."""

    api: Literal["chat", "responses", "messages", "completions"] = "chat"
    messages: tuple[Message, ...] = ()
    """In OpenAI's shape: unknown keys are gone, `arguments` is JSON text, content is text (or parts with images)."""
    prompts: tuple[str | tuple[int, ...], ...] = ()
    """Texts or token ids to continue as they are, without a template; then there are no messages."""
    previous: str | None = None
    """Id of the earlier reply whose conversation the messages continue; it need not be sent again."""
    shown: frozenset[str] = frozenset()
    """Ids of earlier replies that the messages show, where the client says which: replies may be alike."""
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    grammar: Grammar | None = None
    """What the text of the reply must look like."""
    template_options: Mapping[str, Any] = attrs.field(factory=dict)
    """Further variables of the chat template, `enable_thinking` for one."""
    model: str = "default"
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end a reply beside the model's own."""
    min_tokens: int | None = None
    """Before so many tokens no stop token is sampled."""
    ignore_eos: bool = False
    """Whether the model's own ends do not end a reply, even if `stop_token_ids` has them."""
    n: int = 1
    """Replies wanted to each prompt."""
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with the usage."""
    logprobs: bool = False
    top_logprobs: int = 0
    return_token_ids: bool = False
    trainable: bool = True
    """False: the policy answers, and nothing of it is trained."""
    echo: Mapping[str, Any] = attrs.field(factory=dict)
    """What the dialect's reply repeats of the request."""
    ignored: Mapping[str, Any] = attrs.field(factory=dict)
    """Fields that have no effect here, kept for the trace."""

    @property
    def callable_tools(self) -> tuple[Mapping[str, Any], ...]:
        """The tools that the reply may call."""
        choice = self.tool_choice
        if choice.mode == "none":
            return ()
        return tuple(tool for tool in self.tools if not choice.names or tool["function"]["name"] in choice.names)

    @property
    def parse_tools(self) -> bool:
        """Whether tool calls in the reply are calls, not text."""
        return bool(self.tools) and self.tool_choice.mode != "none"


@attrs.frozen(kw_only=True)
class Usage:
    """Tokens of a call; a prompt counts once, however many replies it got."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    """Prompt tokens that the engine had in its prefix store."""
    reasoning_tokens: int


@attrs.frozen(kw_only=True)
class Choice:
    """One finished, stored reply of a call."""

    interaction: Interaction
    """Its `output` may have `reasoning_content`, `tool_calls` and `tool_call_errors` beside the content."""
    prompt_tokens: int
    """Tokens of the whole prompt."""
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_string: str | None = None
    """The stop string that ended it."""
    top_logprobs: TopLogprobs = ()
    reasoning_tokens: int = 0
    told_logprobs: tuple[Mapping[str, Any], ...] = ()
    """Of an upstream's reply, whose token ids nobody knows: OpenAI's entries, one per token of the content."""
    told_usage: Usage | None = None
    """What an upstream says of the whole call."""
    prompt_ids: tuple[int, ...] = ()
    """The whole prompt, where the request asks for token ids. [T]"""


@attrs.frozen(kw_only=True)
class Reply:
    """A finished call."""

    request: ChatRequest
    choices: tuple[Choice, ...]
    """`n` for each prompt, in their order."""

    @property
    def id(self) -> str:
        """Id of the response, and of the first choice's interaction."""
        return self.choices[0].interaction.id

    @property
    def first(self) -> Choice:
        """The only choice, in APIs that know one."""
        return self.choices[0]

    @property
    def usage(self) -> Usage:
        """Sums over the choices, or what an upstream says."""
        if self.first.told_usage is not None:
            return self.first.told_usage
        firsts = self.choices[:: self.request.n]
        return Usage(
            prompt_tokens=sum(choice.prompt_tokens for choice in firsts),
            output_tokens=sum(len(choice.interaction.output_ids) for choice in self.choices),
            cached_tokens=sum(choice.interaction.cached_tokens for choice in firsts),
            reasoning_tokens=sum(choice.reasoning_tokens for choice in self.choices),
        )


@attrs.frozen(kw_only=True)
class Delta:
    """What is new in a stream: text that no later token can change, and the tokens since the last delta."""

    index: int = 0
    """Of the choice."""
    content: str = ""
    """May be empty while a character, a tool call or a stop string is incomplete."""
    reasoning: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """Whole calls in OpenAI's shape: a call is told when it is known to be well-formed."""
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_logprobs: TopLogprobs = ()
    told_logprobs: tuple[Mapping[str, Any], ...] = ()
    """Of an upstream: entries in place of token ids."""

    @property
    def is_visible(self) -> bool:
        """Whether there is anything but tokens to tell."""
        return bool(self.content or self.reasoning or self.tool_calls)


class StreamWriter(Protocol):
    """Encodes one streamed reply as server-sent events."""

    def begin(self) -> bytes:
        """Encode what comes before the first token."""
        ...

    def delta(self, delta: Delta) -> bytes:
        """Encode what is new; empty bytes where there is nothing to tell yet."""
        ...

    def end(self, reply: Reply) -> bytes:
        """Encode the tail, all deltas being told: finish reasons, usage."""
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

    def writer(self, request: ChatRequest, reply_id: str, prompt_tokens: int, decode: Decode) -> StreamWriter:
        """Build the encoder of a streamed reply."""
        ...

    def error(self, error: RequestError) -> dict[str, Any]:
        """Build the body of a refusal."""
        ...
