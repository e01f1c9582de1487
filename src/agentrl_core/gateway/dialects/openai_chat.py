"""Dialect of OpenAI's chat completions, `POST /v1/chat/completions`: requests, replies and streams."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from agentrl_core.errors import RequestError
from agentrl_core.gateway.call_types import ChatRequest, Choice, Decode, Delta, Reply, ReplyHead
from agentrl_core.gateway.dialects.fields import Fields
from agentrl_core.gateway.dialects.openai_fields import (
    RESPONSE_FORMAT,
    SHARED,
    kept,
    parse_response_format,
    parse_stop,
    parse_template_options,
    parse_tool_choice,
    shared_options,
)
from agentrl_core.gateway.dialects.openai_messages import MESSAGES, TOOLS, call_of, parse_messages, parse_tools
from agentrl_core.gateway.dialects.openai_replies import ChunkWriter, completion, logprobs_of, openai_error
from agentrl_core.gateway.dialects.shape import accepted, anything, flag, refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.types import Message

_REPLACED = {"functions": "tools", "function_call": "tool_choice"}
"""Fields that OpenAI replaced by newer ones of another form."""

REQUEST = accepted(
    {"messages": MESSAGES},
    **SHARED,
    **{older: refused(f"Use {newer}.") for older, newer in _REPLACED.items()},
    tools=TOOLS,
    response_format=RESPONSE_FORMAT,
    web_search_options=anything("As `gateway.hosted_tools` says: refused, or left out."),
    max_completion_tokens=SHARED["max_tokens"],
    logprobs=flag("Whether the reply has log-probabilities."),
)


class OpenAIChat:
    """Dialect of `POST /v1/chat/completions`."""

    id_prefix = "chatcmpl-"

    def parse(self, body: Any, headers: Mapping[str, str]) -> ChatRequest:
        """Check a decoded JSON body; `RequestError` (400) names the field at fault."""
        fields = Fields(body, REQUEST)
        _refuse_functions(fields)
        messages = parse_messages(fields.take("messages"))
        tools = parse_tools(fields.take("tools"))
        functions = tuple(tools.functions)
        search = fields.take("web_search_options")
        # `max_completion_tokens` replaced `max_tokens`; clients may send both.
        older, newer = fields.integer("max_tokens"), fields.integer("max_completion_tokens")
        stream_options = fields.inside("stream_options")
        logprobs, top = fields.flag("logprobs"), fields.integer("top_logprobs")
        if top and not logprobs:
            raise RequestError(400, "invalid_value", "top_logprobs needs logprobs to be true", param="top_logprobs")
        return ChatRequest(
            messages=messages,
            tools=functions,
            tool_forms=tools.forms,
            hosted_tools={} if search is None else {"web_search_options": "web_search"},
            tool_choice=parse_tool_choice(fields.take("tool_choice"), functions),
            parallel_tool_calls=fields.flag("parallel_tool_calls"),
            grammar=parse_response_format(fields.take("response_format")),
            template_options=parse_template_options(fields),
            **shared_options(fields, headers),
            max_tokens=newer if newer is not None else older,
            stop=parse_stop(fields.take("stop")),
            n=fields.integer("n") or 1,
            include_usage=stream_options.flag("include_usage"),
            logprobs=logprobs,
            top_logprobs=top or 0,
            return_token_ids=fields.flag("return_token_ids"),
            ignored=kept({**fields.rest(), **({} if search is None else {"web_search_options": search})}),
        )

    def response(self, reply: Reply, decode: Decode) -> dict[str, Any]:
        """Build the body of a reply that is not streamed."""
        request = reply.request
        choices = [_choice(index, choice, request, decode) for index, choice in enumerate(reply.choices)]
        body = completion(reply, "chat.completion", choices)
        if request.return_token_ids:
            body["prompt_token_ids"] = reply.first.prompt_ids
        return body

    def writer(self, request: ChatRequest, head: ReplyHead, decode: Decode) -> OpenAIChatWriter:
        """Build the encoder of a streamed reply."""
        return OpenAIChatWriter(request=request, reply_id=head.id, created=int(time.time()), decode=decode)

    def error(self, error: RequestError) -> dict[str, Any]:
        """Build the body of a refusal."""
        return openai_error(error)


def _refuse_functions(fields: Fields) -> None:
    """Refuse `functions` and `function_call`, the predecessors of `tools`; ignoring them would drop all tools."""
    for name, newer in _REPLACED.items():
        if fields.take(name) is not None:
            raise RequestError(400, "unsupported_value", f"{name} is not supported: use {newer}", param=name)


def _choice(index: int, choice: Choice, request: ChatRequest, decode: Decode) -> dict[str, Any]:
    interaction = choice.interaction
    built: dict[str, Any] = {
        "index": index,
        "message": {**_with_custom_calls(interaction.output, request), "refusal": None},
        "finish_reason": choice.finish_reason,
        "logprobs": None,
    }
    # An upstream's entries are passed on as they are, for its token ids are unknown.
    if choice.upstream_logprobs:
        built["logprobs"] = {"content": choice.upstream_logprobs, "refusal": None}
    elif request.logprobs:
        built["logprobs"] = logprobs_of(interaction.output_ids, interaction.logprobs, choice.top_logprobs, decode)
    if request.return_token_ids:
        built["token_ids"] = interaction.output_ids
    return built


def _with_custom_calls(message: Message, request: ChatRequest) -> Message:
    """Return a message with the calls of custom tools in this API's form."""
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [call_of(call, request.tool_forms) for call in calls]} if calls else message


@attrs.define
class _Held:
    """Tokens of one choice whose text is not sent yet, and what of it is sent."""

    ids: list[int] = attrs.field(factory=list)
    logprobs: list[float] = attrs.field(factory=list)
    top_logprobs: list[tuple[tuple[int, float], ...]] = attrs.field(factory=list)
    upstream_logprobs: list[Mapping[str, Any]] = attrs.field(factory=list)
    calls: int = 0
    """Number of its tool calls that are sent."""
    has_content: bool = False


@attrs.define(kw_only=True)
class OpenAIChatWriter(ChunkWriter):
    """Encodes one streamed reply.

    Token ids and log-probabilities are held back until there is text or a tool call to send with them.
    """

    kind: ClassVar[str] = "chat.completion.chunk"
    _held: dict[int, _Held] = attrs.field(factory=lambda: defaultdict(_Held), init=False)

    def begin(self) -> bytes:
        """Encode the first chunk of each choice, which has the role."""
        # Without content: it is null if only tool calls come, and which of the two is not known yet.
        return b"".join(self._chunk(index, {"role": "assistant"}) for index in range(self.request.n))

    def delta(self, delta: Delta) -> bytes:
        """Encode new text or calls with all tokens since the last chunk; empty bytes if there are none."""
        held = self._held[delta.index]
        held.ids.extend(delta.ids)
        held.logprobs.extend(delta.logprobs)
        held.top_logprobs.extend(delta.top_logprobs)
        held.upstream_logprobs.extend(delta.upstream_logprobs)
        if not delta.is_visible:
            return b""
        message: Message = {}
        if delta.reasoning:
            message["reasoning_content"] = delta.reasoning
        if delta.content:
            message["content"] = delta.content
            held.has_content = True
        if delta.tool_calls:
            first = held.calls
            held.calls += len(delta.tool_calls)
            calls = _with_custom_calls({"tool_calls": delta.tool_calls}, self.request)["tool_calls"]
            message["tool_calls"] = [{"index": first + at, **call} for at, call in enumerate(calls)]
        return self._chunk(delta.index, message)

    def _last_chunk(self, index: int, choice: Choice) -> bytes:
        # The errors of its tool calls come with a choice's last chunk.
        errors = choice.interaction.output.get("tool_call_errors")
        message: Message = {"tool_call_errors": errors} if errors else {}
        # As in a reply that is not streamed: the text of a reply without calls may be empty, but not null.
        if not self._held[index].has_content and not self._held[index].calls:
            message["content"] = ""
        return self._chunk(index, message, finish_reason=choice.finish_reason, prompt_ids=choice.prompt_ids)

    def _chunk(
        self, index: int, delta: Message, *, finish_reason: str | None = None, prompt_ids: tuple[int, ...] | None = None
    ) -> bytes:
        choice: dict[str, Any] = {"index": index, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        more: dict[str, Any] = {}
        held = self._held[index]
        if held.upstream_logprobs:
            choice["logprobs"] = {"content": held.upstream_logprobs, "refusal": None}
        elif self.request.logprobs and held.ids:
            choice["logprobs"] = logprobs_of(held.ids, held.logprobs, held.top_logprobs, self.decode)
        if self.request.return_token_ids:
            choice["token_ids"] = held.ids
            if prompt_ids is not None:
                more["prompt_token_ids"] = prompt_ids
        data = self._event([choice], **more)
        held.ids, held.logprobs, held.top_logprobs, held.upstream_logprobs = [], [], [], []
        return data
