"""Translation between LangChain's messages and those of OpenAI's chat completions, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

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
from langchain_core.messages.block_translators.openai import convert_to_openai_image_block
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.output_parsers.openai_tools import parse_tool_call

if TYPE_CHECKING:
    from langchain_core.messages.ai import UsageMetadata

Json = dict[str, Any]
Parse: TypeAlias = Callable[[str], Json]
"""Function from a reply's text to fields for its `additional_kwargs`, where LangChain's parsers look for them."""

_EVENT_END = b"\n\n"
_ROLES: Mapping[type[BaseMessage], str] = {HumanMessage: "user", SystemMessage: "system"}


def to_openai(message: BaseMessage) -> Json:
    """Return a message in the form of OpenAI's API. Raises `ValueError` for a kind of message that it does not have.

    An AI message is reduced to its text, thoughts and tool calls, which is what the policy sampled. Its name is a label
    of the framework, and its content may have become blocks in some provider's form.
    """
    if isinstance(message, AIMessage):
        reply: Json = {"role": "assistant", "content": str(message.text)}
        if thoughts := message.additional_kwargs.get("reasoning_content"):
            reply["reasoning_content"] = thoughts
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
            f"a {type(message).__name__} cannot be sent to the policy; fix: use system, human, AI and tool messages"
        )
    return {"role": role, "content": _content(message)} | ({"name": message.name} if message.name else {})


def to_replies(body: Json, parse: Parse = lambda _: {}) -> list[AIMessage]:
    """Return the messages of a completion, one per choice.

    The id of a message, also in `response_metadata["id"]`, is the id of its interaction.
    """
    return [_reply(body, choice, parse) for choice in body["choices"]]


def _reply(body: Json, choice: Json, parse: Parse) -> AIMessage:
    said: Json = choice["message"]
    calls: list[ToolCall] = []
    invalid: list[InvalidToolCall] = []
    for raw in said.get("tool_calls") or ():
        read = _read_call(raw)
        if read["type"] == "tool_call":
            calls.append(read)
        else:
            invalid.append(read)
    text = said.get("content") or ""
    reply_id = body["id"] + (f".{choice['index']}" if choice["index"] else "")
    return AIMessage(
        content=text,
        additional_kwargs=_additional(said) | ({} if said.get("tool_calls") else parse(text)),
        tool_calls=calls,
        invalid_tool_calls=invalid,
        id=reply_id,
        response_metadata=_metadata(body, choice) | {"id": reply_id, "token_usage": body["usage"]},
        usage_metadata=_usage(body["usage"]),
    )


class ReplyStream:
    """Incremental reader of a streamed completion.

    It splits events at blank lines itself. The line iterators of HTTP clients also split at characters such as U+2028,
    which may stand unescaped in JSON text.
    """

    def __init__(self, parse: Parse = lambda _: {}) -> None:
        self._parse = parse
        self._rest = b""
        self._ended = False
        self._said = ""
        self._called = False

    def feed(self, data: bytes) -> Iterator[AIMessageChunk]:
        """Yield the chunks that `data` completes. Raises `ModelAPIError` if the gateway reports a failure."""
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
            yield self._beside(_to_chunk(body))

    def close(self) -> None:
        """Check that the stream has ended with `[DONE]`. Raises `ModelAPIError` if it has not."""
        if not self._ended:
            raise ModelAPIError("the policy's reply broke off: its stream ended without the end mark")

    def _beside(self, chunk: AIMessageChunk) -> AIMessageChunk:
        """Add the fields that `parse` returns for the whole reply to its last chunk."""
        self._said += str(chunk.content)
        self._called = self._called or bool(chunk.tool_call_chunks)
        if "finish_reason" in chunk.response_metadata and not self._called:
            chunk.additional_kwargs |= self._parse(self._said)
        return chunk


def _to_chunk(body: Json) -> AIMessageChunk:
    # The chunk with the token usage has no choices.
    choice: Json = body["choices"][0] if body["choices"] else {"delta": {}, "finish_reason": None}
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
    if choice["finish_reason"]:
        metadata = _metadata(body, choice)
    else:
        metadata = {"logprobs": choice["logprobs"]} if choice.get("logprobs") else {}
    return AIMessageChunk(
        content=delta.get("content") or "",
        additional_kwargs=_additional(delta),
        tool_call_chunks=calls,
        id=body["id"],
        response_metadata=metadata,
        usage_metadata=_usage(body.get("usage")),
    )


def _call(name: str | None, call_id: str | None, arguments: str | None) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name or "", "arguments": arguments or ""}}


def _arguments(call: ToolCall) -> str:
    return json.dumps(call["args"], ensure_ascii=False)


def _content(message: BaseMessage) -> str | list[Any]:
    """Return the content: text as it is, image parts of any provider in OpenAI's form, other parts as they are.

    The gateway refuses parts that it does not support.
    """
    if isinstance(message.content, str):
        return message.content
    return [_part(dict(block)) for block in message.content_blocks]


def _part(block: Json) -> Json:
    if block["type"] == "image" and ("base64" in block or "url" in block):
        return convert_to_openai_image_block(block)
    if block["type"] != "non_standard":
        return block
    part: Json = block["value"]
    if part.get("type") in {"image_url", "input_image"} and isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return part


def _additional(said: Json) -> Json:
    """Return the thoughts and the malformed tool calls of a reply, for `additional_kwargs`."""
    return {name: said[name] for name in ("reasoning_content", "tool_call_errors") if said.get(name)}


def _read_call(raw: Json) -> ToolCall | InvalidToolCall:
    """Return a tool call; if its arguments are not a JSON object, return LangChain's invalid call with the error."""
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
