"""Translate between LangChain's messages and the bodies of OpenAI's chat completions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from langchain_core.exceptions import ModelAPIError, OutputParserException
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    InvalidToolCall,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.output_parsers.openai_tools import parse_tool_call

if TYPE_CHECKING:
    from langchain_core.messages.ai import UsageMetadata

Json = dict[str, Any]

_EVENT_END = b"\n\n"
_ROLES: Mapping[type[BaseMessage], str] = {HumanMessage: "user", SystemMessage: "system"}


def to_openai(message: BaseMessage) -> Json:
    """Write a message as OpenAI's APIs take it; `ValueError` for a kind that they do not know.

    Of a reply go back its text and its tool calls, as they are what the policy said: its name is a label of the
    framework, and its content may have become blocks in some provider's shape.
    """
    if isinstance(message, AIMessage):
        reply: Json = {"role": "assistant", "content": str(message.text)}
        calls = [_call(call["name"], call["id"], _arguments(call)) for call in message.tool_calls]
        calls += [_call(call["name"], call["id"], call["args"]) for call in message.invalid_tool_calls]
        return reply | ({"tool_calls": calls} if calls else {})
    if isinstance(message, ToolMessage):
        return {"role": "tool", "content": _content(message), "tool_call_id": message.tool_call_id}
    if isinstance(message, ChatMessage):
        role: str | None = message.role
    else:
        role = next((role for kind, role in _ROLES.items() if isinstance(message, kind)), None)
    if role is None:
        raise ValueError(
            f"a {type(message).__name__} cannot be sent to the policy; use system, human, AI and tool messages"
        )
    return {"role": role, "content": _content(message)} | ({"name": message.name} if message.name else {})


def to_reply(body: Json) -> AIMessage:
    """Read the body of a completion; its id is the message's, and `response_metadata["id"]`."""
    choice = body["choices"][0]
    calls: list[ToolCall] = []
    invalid: list[InvalidToolCall] = []
    for raw in choice["message"].get("tool_calls") or ():
        read = _read_call(raw)
        if read["type"] == "tool_call":
            calls.append(read)
        else:
            invalid.append(read)
    return AIMessage(
        content=choice["message"].get("content") or "",
        tool_calls=calls,
        invalid_tool_calls=invalid,
        id=body["id"],
        response_metadata=_metadata(body, choice) | {"token_usage": body["usage"]},
        usage_metadata=_usage(body["usage"]),
    )


class ReplyStream:
    """Reads a streamed completion piece by piece.

    Cuts it at blank lines itself: what HTTP clients call lines also ends at characters such as U+2028, which
    JSON text may hold as they are.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._ended = False

    def feed(self, data: bytes) -> Iterator[AIMessageChunk]:
        """Yield the chunks that `data` completes; `ModelAPIError` where the gateway reports a failure."""
        *events, self._rest = (self._rest + data).split(_EVENT_END)
        for event in events:
            if not event.startswith(b"data:"):
                continue
            payload = event.removeprefix(b"data:").strip()
            if payload == b"[DONE]":
                self._ended = True
                continue
            body = json.loads(payload)
            if "error" in body:
                raise ModelAPIError(f"the policy's reply broke off: {body['error']['message']}")
            yield _to_chunk(body)

    def close(self) -> None:
        """Check that the reply came to its end."""
        if not self._ended:
            raise ModelAPIError("the policy's reply broke off: its stream ended without the end mark")


def _to_chunk(body: Json) -> AIMessageChunk:
    choice: Json = body["choices"][0] if body["choices"] else {"delta": {}, "finish_reason": None}  # usage alone
    delta: Json = choice["delta"]
    calls = [
        tool_call_chunk(
            name=call["function"].get("name"),
            args=call["function"].get("arguments"),
            id=call.get("id"),
            index=call["index"],
        )
        for call in delta.get("tool_calls") or ()
    ]
    return AIMessageChunk(
        content=delta.get("content") or "",
        tool_call_chunks=calls,
        id=body["id"],
        response_metadata=_metadata(body, choice) if choice["finish_reason"] else {},
        usage_metadata=_usage(body.get("usage")),
    )


def _call(name: str | None, call_id: str | None, arguments: str | None) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name or "", "arguments": arguments or ""}}


def _arguments(call: ToolCall) -> str:
    return json.dumps(call["args"], ensure_ascii=False)


def _content(message: BaseMessage) -> str | list[Any]:
    """Text as it is; of parts, those that are not text are the gateway's to judge."""
    if isinstance(message.content, str):
        return message.content
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in message.content]


def _read_call(raw: Json) -> ToolCall | InvalidToolCall:
    """Read one tool call; what is no JSON object is kept as LangChain's invalid call, for the agent to see."""
    name, arguments, call_id = raw["function"]["name"], raw["function"]["arguments"], raw["id"]
    try:
        parsed = parse_tool_call(raw)
    except OutputParserException as error:
        return invalid_tool_call(name=name, args=arguments, id=call_id, error=str(error))
    args = parsed["args"] if parsed else None
    if not isinstance(args, dict):
        error_text = f"the arguments of {name} are not a JSON object: {arguments}"
        return invalid_tool_call(name=name, args=arguments, id=call_id, error=error_text)
    return tool_call(name=name, args=args, id=call_id)


def _metadata(body: Json, choice: Json) -> Json:
    return {
        "id": body["id"],
        "model_name": body["model"],
        "finish_reason": choice["finish_reason"],
        "logprobs": choice.get("logprobs"),
    }


def _usage(usage: Json | None) -> UsageMetadata | None:
    if not usage:
        return None
    return {
        "input_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "total_tokens": usage["total_tokens"],
        "input_token_details": {"cache_read": (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)},
    }
