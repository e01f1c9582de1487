"""Dialect of Anthropic's Messages API, `POST /v1/messages`: its requests and complete replies.

`anthropic_content` parses the messages, `anthropic_stream` encodes streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agentrl_core.errors import RequestError
from agentrl_core.gateway.call_types import ChatRequest, Decode, Reply, ReplyHead, ToolChoice
from agentrl_core.gateway.dialects.anthropic_content import MESSAGES, SYSTEM, TOOLS, parse_messages, parse_tools
from agentrl_core.gateway.dialects.anthropic_replies import (
    anthropic_error,
    content_blocks,
    extras_of,
    stop_of,
    usage_of,
)
from agentrl_core.gateway.dialects.anthropic_stream import AnthropicWriter
from agentrl_core.gateway.dialects.fields import Fields
from agentrl_core.gateway.dialects.openai_fields import (
    SHARED,
    STOP_STRINGS,
    kept,
    parse_stop,
    parse_template_options,
    shared,
    shared_options,
)
from agentrl_core.gateway.dialects.shape import (
    accepted,
    anything,
    flag,
    integer,
    listed,
    number,
    one_of,
    refused,
    text,
)
from agentrl_core.types import Grammar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_THINKING = ("enabled", "disabled", "adaptive", "between_tools")
_CHOICES: Mapping[str, Any] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
_NO_THREAD = "thread is not supported: send all messages of the conversation with every request"

_FORMAT = accepted({"type": one_of("json_schema"), "schema": anything("JSON schema of the reply's text.")})
_TOOL_CHOICE = accepted(
    {"type": one_of(*_CHOICES)},
    name=text("The tool that must be called."),
    disable_parallel_tool_use=flag("Whether the reply may make one call only."),
)
_OPTIONS: Mapping[str, Any] = dict(
    **shared("model", "top_p", "stream", "return_token_ids", "chat_template_kwargs"),
    system=SYSTEM,
    tools=TOOLS,
    tool_choice=_TOOL_CHOICE,
    thinking=accepted({"type": one_of(*_THINKING)}),
    output_config=accepted({}, format=_FORMAT),
    output_format=_FORMAT,
    temperature=number("Temperature; `gateway.temperature` decides about trained calls.", minimum=0, maximum=1),
    top_k=integer("Number of tokens to sample from, 0: all; as for top_p."),
    stop_sequences=STOP_STRINGS,
    thread=refused(_NO_THREAD),
    # Not among the ignored options, which are stored: it holds keys of servers.
    mcp_servers=listed(anything(), "As `gateway.hosted_tools` says: refused, or left out."),
)
COUNT_REQUEST = accepted({"messages": MESSAGES}, **_OPTIONS)
REQUEST = accepted({"messages": MESSAGES, "max_tokens": SHARED["max_tokens"]}, **_OPTIONS)


class AnthropicMessages:
    """Dialect of `POST /v1/messages`."""

    id_prefix = "msg_"

    def parse(self, body: Any, headers: Mapping[str, str]) -> ChatRequest:
        """Check a decoded JSON body; `RequestError` (400) names the field at fault."""
        fields = Fields(body, REQUEST)
        max_tokens = fields.integer("max_tokens")
        if max_tokens is None:
            raise RequestError(
                400,
                "missing_required_parameter",
                "max_tokens is missing; the Messages API requires it in every request",
                param="max_tokens",
            )
        return _request(fields, headers, max_tokens)

    def parse_count(self, body: Any, headers: Mapping[str, str]) -> ChatRequest:
        """Check the body of `POST /v1/messages/count_tokens`, which has no `max_tokens`."""
        return _request(Fields(body, COUNT_REQUEST), headers, None)

    def response(self, reply: Reply, decode: Decode) -> dict[str, Any]:  # noqa: ARG002 - no logprobs in this API
        """Build the body of a reply that is not streamed."""
        return {
            "id": reply.id,
            "type": "message",
            "role": "assistant",
            "model": reply.request.model,
            "content": list(content_blocks(reply.first.interaction.output)),
            **stop_of(reply.first),
            "usage": usage_of(reply),
            **extras_of(reply),
        }

    def writer(self, request: ChatRequest, head: ReplyHead, decode: Decode) -> AnthropicWriter:  # noqa: ARG002 - no logprobs in this API
        """Build the encoder of a streamed reply."""
        return AnthropicWriter(request=request, reply_id=head.id, prompt_tokens=head.prompt_tokens)

    def error(self, error: RequestError) -> dict[str, Any]:
        """Build the body of a refusal."""
        return anthropic_error(error)


def _request(fields: Fields, headers: Mapping[str, str], max_tokens: int | None) -> ChatRequest:
    ignored: dict[str, Any] = {}
    _refuse_thread(fields.take("thread"))
    declared = parse_tools(fields.take("tools"))
    if fields.take("mcp_servers"):
        declared.hosted["mcp_servers"] = "mcp"
    tools = tuple(declared.functions)
    choice, parallel = _tool_choice(fields.take("tool_choice"), tools)
    return ChatRequest(
        api="messages",
        messages=parse_messages(fields.take("system"), fields.take("messages")),
        tools=tools,
        hosted_tools=declared.hosted,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        grammar=_grammar(fields, ignored),
        template_options={**parse_template_options(fields), **_thinking(fields.take("thinking"), ignored)},
        **shared_options(fields, headers),
        max_tokens=max_tokens,
        stop=parse_stop(fields.take("stop_sequences"), "stop_sequences"),
        return_token_ids=fields.flag("return_token_ids") or headers.get("return_token_ids") in {"1", "true"},
        ignored={**ignored, **kept(fields.rest())},
    )


def _refuse_thread(value: Any) -> None:
    """Refuse `thread`, which would have the gateway keep the conversation.

    On this error code Anthropic's SDK falls back to sending the whole conversation with each request.
    """
    if value is not None:
        raise RequestError(400, "thread_unsupported_request", _NO_THREAD, param="thread")


def _thinking(value: Any, ignored: dict[str, Any]) -> Mapping[str, Any]:
    """Return the template variable `enable_thinking` if the client turns thinking on or off.

    A token budget for thinking is ignored.
    """
    if value is None:
        return {}
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in _THINKING:
        raise RequestError(
            400,
            "invalid_value",
            f'thinking must look like {{"type": …}} with one of {", ".join(_THINKING)}',
            param="thinking",
        )
    # Further keys, such as a token budget, have no effect; the trace lists them.
    if len(value) > 1:
        ignored["thinking"] = value
    return {"enable_thinking": kind == "enabled"} if kind in {"enabled", "disabled"} else {}


def _grammar(fields: Fields, ignored: dict[str, Any]) -> Grammar | None:
    """Check `output_config.format`, or `output_format` of the API's beta, and return its grammar."""
    config = fields.inside("output_config")
    older, newer = fields.take("output_format"), config.take("format")
    if rest := config.rest():
        ignored["output_config"] = rest
    value = older if newer is None else newer
    if value is None:
        return None
    schema = value.get("schema") if isinstance(value, dict) and value.get("type") == "json_schema" else None
    if not isinstance(schema, dict):
        param = "output_format" if newer is None else "output_config.format"
        raise RequestError(
            400, "invalid_value", f'{param} must look like {{"type": "json_schema", "schema": {{…}}}}', param=param
        )
    return Grammar(kind="json_schema", value=orjson.dumps(schema).decode())


def _tool_choice(value: Any, tools: Sequence[Mapping[str, Any]]) -> tuple[ToolChoice, bool]:
    """Check `tool_choice`, and return it with whether the reply may make several calls."""
    if value is None:
        return ToolChoice(), True
    fields = Fields(value, _TOOL_CHOICE, "tool_choice.")
    mode, name = _CHOICES.get(fields.text("type") or ""), fields.text("name") or ""
    if mode is None:
        raise _wrong_choice(f".type must be one of {', '.join(_CHOICES)}")
    # The API has no separate field for parallel calls; the flag is part of `tool_choice`.
    parallel = not fields.flag("disable_parallel_tool_use")
    names = [tool["function"]["name"] for tool in tools]
    if mode == "required" and not names:
        raise _wrong_choice(" requires a call, but there are no tools")
    if value["type"] != "tool":
        return ToolChoice(mode=mode), parallel
    if name not in names:
        raise _wrong_choice(f" names the tool {name!r}; expected one of {', '.join(names)}")
    return ToolChoice(mode=mode, names=(name,)), parallel


def _wrong_choice(message: str) -> RequestError:
    return RequestError(400, "invalid_value", f"tool_choice{message}", param="tool_choice")
