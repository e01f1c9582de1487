"""Define the types between the HTTP APIs and sampling: `ChatRequest`, `Reply`, `Delta`, and the `Dialect` protocol.

A dialect such as `openai_chat` translates its JSON to a `ChatRequest`, and a `Reply` or its `Delta`s back to JSON.
Policy and upstreams know these types only, so a new API needs one new dialect and no change to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import attrs
import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentrl_core.errors import RequestError
    from agentrl_core.types import Grammar, Interaction, Message, Sampling

Decode: TypeAlias = "Callable[[Sequence[int]], str]"
"""Function that returns the text of token ids."""

TopLogprobs: TypeAlias = "tuple[tuple[tuple[int, float], ...], ...]"
"""Likeliest tokens and their logprobs at each position, likeliest first. [T][K]"""


@attrs.frozen(kw_only=True)
class ToolChoice:
    """Whether the reply may, must or must not call tools."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()
    """Names of the tools that may be called; empty: all."""


@attrs.frozen(kw_only=True)
class ToolForm:
    """Form in which an API has one of the client's own tools that is no plain function; the policy sees a function."""

    name: str
    namespace: str = ""
    """Name of the group that the tool is in; empty: none."""
    format: Mapping[str, Any] | None = None
    """Format of a custom tool's input, which is a text in place of JSON arguments; None for a function."""


@attrs.frozen(kw_only=True)
class ChatRequest:
    """Validated request for one or more replies; a number is None where the agent left it out.

    Numbers are as the agent gave them: `sampling_parameters` decides which of them take effect.
    """

    api: Literal["chat", "responses", "messages", "completions", "context"] = "chat"
    """API that the agent called; `context` for a question of the context policy."""
    messages: tuple[Message, ...] = ()
    """Messages in OpenAI's shape: no unknown keys, `arguments` as JSON text, content as text (or parts with images)."""
    prompts: tuple[str | tuple[int, ...], ...] = ()
    """Prompts of the legacy completions API (text or token ids), continued without a template; then no messages."""
    previous: str | None = None
    """Id of the earlier reply that the messages continue (`previous_response_id`); its conversation is not resent."""
    shown: frozenset[str] = frozenset()
    """Ids of earlier replies that are among the messages, if the client sends ids: they tell equal texts apart."""
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_forms: Mapping[str, ToolForm] = attrs.field(factory=dict)
    """Forms of the tools that are no plain functions, by the names that the policy sees."""
    hosted_tools: Mapping[str, str] = attrs.field(factory=dict)
    """Kinds of the tools that a provider would have to run, by their places in the request."""
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    grammar: Grammar | None = None
    """Grammar that the text of the reply must match."""
    template_options: Mapping[str, Any] = attrs.field(factory=dict)
    """Further variables of the chat template, such as `enable_thinking`."""
    model: str = "default"
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end a reply, in addition to the model's own."""
    min_tokens: int | None = None
    """Least length of a reply: no stop token is sampled before so many tokens."""
    ignore_eos: bool = False
    """Whether the model's own end tokens do not end a reply, even if `stop_token_ids` contains them."""
    n: int = 1
    """Number of replies to each prompt."""
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with token counts."""
    logprobs: bool = False
    top_logprobs: int = 0
    return_token_ids: bool = False
    trainable: bool = True
    """Whether the reply may be trained; if not, the policy still answers and the call is still recorded."""
    echo: Mapping[str, Any] = attrs.field(factory=dict)
    """Request fields that the dialect's response repeats."""
    ignored: Mapping[str, Any] = attrs.field(factory=dict)
    """Request options that are ignored here; the trace lists them, and chat completions pass them on to upstreams."""

    @property
    def callable_tools(self) -> tuple[Mapping[str, Any], ...]:
        """Tools that the reply may call under `tool_choice`."""
        choice = self.tool_choice
        if choice.mode == "none":
            return ()
        return tuple(tool for tool in self.tools if not choice.names or tool["function"]["name"] in choice.names)

    def as_sent(self, calls: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
        """Return calls with the input of custom tools as their only argument, even if the policy wrote another form.

        The client gets the input alone, so this is the call that it sends back.
        """
        return tuple(
            {**call, "function": {**call["function"], "arguments": custom_arguments(custom_input(call))}}
            if (form := self.tool_forms.get(call["function"]["name"])) and form.format is not None
            else call
            for call in calls
        )

    @property
    def parse_tools(self) -> bool:
        """Whether tool calls in the reply are parsed; otherwise they stay text."""
        return bool(self.tools) and self.tool_choice.mode != "none"


def custom_input(call: Mapping[str, Any]) -> str:
    """Return the text that a call passes to a custom tool: its argument `input`, or whatever else it has."""
    arguments: str = call["function"]["arguments"]
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = value.get("input") if isinstance(value, dict) and len(value) == 1 else None
    return text if isinstance(text, str) else arguments


def custom_arguments(text: str) -> str:
    """Return the arguments of a call that passes a text to a custom tool."""
    return orjson.dumps({"input": text}).decode()


@attrs.frozen(kw_only=True)
class TokenUsage:
    """Token counts of a call; a prompt counts once, even if it got several replies."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    """Prompt tokens that the engine took from its prefix cache."""
    reasoning_tokens: int


@attrs.frozen(kw_only=True)
class Choice:
    """One finished, stored reply of a call."""

    interaction: Interaction
    """Stored interaction; its `output` may have `reasoning_content`, `tool_calls` and `tool_call_errors`."""
    prompt_tokens: int
    """Length of the whole prompt in tokens."""
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_string: str | None = None
    """Stop string that ended the reply; None if something else did."""
    top_logprobs: TopLogprobs = ()
    reasoning_tokens: int = 0
    upstream_logprobs: tuple[Mapping[str, Any], ...] = ()
    """Log-probabilities as an upstream sent them, in OpenAI's form, one entry per token; its token ids are unknown."""
    upstream_usage: TokenUsage | None = None
    """Token counts of the whole call as an upstream reported them; None for the policy."""
    prompt_ids: tuple[int, ...] = ()
    """Ids of the whole prompt if the request asks for token ids, else empty. [T]"""


@attrs.frozen(kw_only=True)
class ReplyHead:
    """Facts of a reply that are known before its first token; a stream begins with them."""

    id: str
    """Id of the response."""
    prompt_tokens: int
    """Length of all prompts in tokens; 0 if it is known at the end only."""
    sampling: Sampling


@attrs.frozen(kw_only=True)
class Reply:
    """Finished call: the request with all its replies."""

    request: ChatRequest
    choices: tuple[Choice, ...]
    """`n` choices for each prompt, in the order of the prompts."""

    @property
    def id(self) -> str:
        """Id of the response, which is that of the first choice's interaction."""
        return self.choices[0].interaction.id

    @property
    def head(self) -> ReplyHead:
        """Facts with which a stream of this reply begins."""
        return ReplyHead(id=self.id, prompt_tokens=self.usage.prompt_tokens, sampling=self.first.interaction.sampling)

    @property
    def first(self) -> Choice:
        """First choice; the only one in APIs without `n`."""
        return self.choices[0]

    @property
    def usage(self) -> TokenUsage:
        """Token counts of the call: an upstream's own report, else the sums over the choices."""
        if self.first.upstream_usage is not None:
            return self.first.upstream_usage
        # The `n` choices of a prompt share it, so one of them per prompt is counted.
        firsts = self.choices[:: self.request.n]
        return TokenUsage(
            prompt_tokens=sum(choice.prompt_tokens for choice in firsts),
            output_tokens=sum(len(choice.interaction.output_ids) for choice in self.choices),
            cached_tokens=sum(choice.interaction.cached_tokens for choice in firsts),
            reasoning_tokens=sum(choice.reasoning_tokens for choice in self.choices),
        )


@attrs.frozen(kw_only=True)
class Delta:
    """New part of a streamed reply: text that later tokens cannot change, and the tokens since the last delta."""

    index: int = 0
    """Index of the choice."""
    content: str = ""
    """New text; empty while a character, a tool call or a possible stop string is incomplete."""
    reasoning: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """Complete calls in OpenAI's shape; a call is sent only once it is known to be well-formed."""
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_logprobs: TopLogprobs = ()
    upstream_logprobs: tuple[Mapping[str, Any], ...] = ()
    """Log-probabilities as an upstream sent them, in place of `ids` and `logprobs`."""

    @property
    def is_visible(self) -> bool:
        """Whether the delta has text, reasoning or tool calls, not only tokens."""
        return bool(self.content or self.reasoning or self.tool_calls)


class StreamWriter(Protocol):
    """Encodes one streamed reply as server-sent events."""

    def begin(self) -> bytes:
        """Encode the events before the first token."""
        ...

    def delta(self, delta: Delta) -> bytes:
        """Encode a delta; empty bytes if the client need not see it yet."""
        ...

    def end(self, reply: Reply) -> bytes:
        """Encode the events after the last delta: finish reasons, usage."""
        ...

    def error(self, error: RequestError) -> bytes:
        """Encode a failure in the middle of the stream."""
        ...


class Dialect(Protocol):
    """One LLM API: parses its requests and builds its responses, streams and errors."""

    id_prefix: str
    """Prefix of response ids, which are also the ids of interactions."""

    def parse(self, body: Any, headers: Mapping[str, str]) -> ChatRequest:
        """Check a decoded JSON body; `RequestError` (400) names the field at fault."""
        ...

    def response(self, reply: Reply, decode: Decode) -> dict[str, Any]:
        """Build the body of a reply that is not streamed."""
        ...

    def writer(self, request: ChatRequest, head: ReplyHead, decode: Decode) -> StreamWriter:
        """Build the encoder of a streamed reply."""
        ...

    def error(self, error: RequestError) -> dict[str, Any]:
        """Build the body of a refusal."""
        ...
