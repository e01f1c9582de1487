"""Build the parts of replies in Anthropic's format: content blocks, stop reasons, usage, errors, events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agentrl_core.errors import ContextLengthError
from agentrl_core.gateway.dialects.openai_replies import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentrl_core.errors import RequestError
    from agentrl_core.gateway.call_types import Choice, Reply
    from agentrl_core.types import Message

SIGNATURE = "YWdlbnRybDp0aG91Z2h0cy1hcmUtcmVjb2duaXNlZC1ieS10aGVpci10ZXh0"
"""Signature of every thinking block; clients require one and send it back, and the gateway does not check it."""

_ERROR_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_FIRST_SERVER_ERROR = 500


def content_blocks(output: Message) -> Iterator[dict[str, Any]]:
    """Yield the content blocks of a reply; if it has neither text nor calls, one empty text block for the agent."""
    if thought := output.get("reasoning_content"):
        yield {"type": "thinking", "thinking": thought, "signature": SIGNATURE}
    calls = output.get("tool_calls", ())
    if (text := output.get("content")) or not calls:
        yield {"type": "text", "text": text or ""}
    for call in calls:
        yield {**tool_use(call), "input": orjson.Fragment(input_of(call))}


def tool_use(call: Mapping[str, Any]) -> dict[str, Any]:
    """Build the block of a tool call with an empty input."""
    return {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": {}}


def input_of(call: Mapping[str, Any]) -> str:
    """Return the JSON text of a call's input as the model wrote it, so that numbers keep their digits.

    An upstream's model may write arguments that are no JSON object. The input must be one, so the text is put under the
    key `malformed_arguments`, where the agent can see it.
    """
    arguments: str = call["function"]["arguments"]
    try:
        if isinstance(orjson.loads(arguments), dict):
            return arguments
    except orjson.JSONDecodeError:
        pass
    return orjson.dumps({"malformed_arguments": arguments}).decode()


def stop_of(choice: Choice) -> dict[str, Any]:
    """Build the stop reason; a reply with tool calls ends by `tool_use`, even if a stop string ended it after them."""
    if choice.finish_reason == "length":
        reason = "max_tokens"
    elif choice.finish_reason == "tool_calls":
        reason = "tool_use"
    else:
        reason = "stop_sequence" if choice.stop_string is not None else "end_turn"
    sequence = choice.stop_string if reason == "stop_sequence" else None
    return {"stop_reason": reason, "stop_sequence": sequence, "stop_details": None}


def usage_of(reply: Reply) -> dict[str, Any]:
    """Build the token counts; in this API `input_tokens` excludes cached tokens."""
    usage = reply.usage
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def extras_of(reply: Reply) -> dict[str, Any]:
    """Build the fields that Anthropic's API lacks: errors in tool calls, and token ids if the request asks for them."""
    interaction = reply.first.interaction
    extras: dict[str, Any] = {}
    if errors := interaction.output.get("tool_call_errors"):
        extras["tool_call_errors"] = errors
    if reply.request.return_token_ids:
        extras |= {"prompt_token_ids": reply.first.prompt_ids, "token_ids": interaction.output_ids}
    return extras


def anthropic_error(error: RequestError) -> dict[str, Any]:
    """Build the body of a refusal."""
    fallback = "api_error" if error.status >= _FIRST_SERVER_ERROR else "invalid_request_error"
    message = shown(error)
    # Clients recognise this error by the words "prompt is too long".
    if isinstance(error, ContextLengthError):
        most = error.context_length - 1
        message = f"prompt is too long: {error.prompt_tokens} tokens > {most} maximum ({error.code})"
    described = {
        "type": _ERROR_TYPES.get(error.status, fallback),
        "message": message,
        "details": {"error_code": error.code},
    }
    return {"type": "error", "error": described, "request_id": None}


def sse_event(data: Mapping[str, Any]) -> bytes:
    """Encode one server-sent event, named by its type."""
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), orjson.dumps(data))
