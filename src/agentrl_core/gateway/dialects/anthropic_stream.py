"""Encode a streamed reply as Anthropic's server-sent events, one content block after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.gateway.dialects.anthropic_replies import (
    SIGNATURE,
    anthropic_error,
    extras_of,
    input_of,
    sse_event,
    stop_of,
    tool_use,
    usage_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentrl_core.errors import RequestError
    from agentrl_core.gateway.call_types import ChatRequest, Delta, Reply

_EMPTY_BLOCKS: Mapping[str, Mapping[str, Any]] = {
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
}


@attrs.define(kw_only=True)
class AnthropicWriter:
    """Encodes one streamed reply: reasoning and text as they come, tool calls at the end.

    This gives the blocks the order of a reply that is not streamed, even if the model writes text after a call. And no
    client starts to run the calls of a reply that fails later and is never recorded.
    """

    request: ChatRequest
    reply_id: str
    prompt_tokens: int
    _open: str = attrs.field(default="", init=False)
    """Type of the open block; empty if none is open."""
    _index: int = attrs.field(default=0, init=False)
    """Index of the open block, else of the next one."""
    _has_text: bool = attrs.field(default=False, init=False)

    def begin(self) -> bytes:
        """Encode the message without its content; the number of cached tokens is known only at the end."""
        usage = {
            "input_tokens": self.prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        }
        message: dict[str, Any] = {
            "id": self.reply_id,
            "type": "message",
            "role": "assistant",
            "model": self.request.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "usage": usage,
        }
        return sse_event({"type": "message_start", "message": message})

    def delta(self, delta: Delta) -> bytes:
        """Encode new reasoning and text; empty bytes if there is neither."""
        if not delta.reasoning and not delta.content:
            return b""
        events: list[Mapping[str, Any]] = []
        if delta.reasoning:
            events += self._switch("thinking")
            events.append(self._delta({"type": "thinking_delta", "thinking": delta.reasoning}))
        if delta.content:
            events += self._switch("text")
            events.append(self._delta({"type": "text_delta", "text": delta.content}))
        return b"".join(map(sse_event, events))

    def end(self, reply: Reply) -> bytes:
        """Encode the tool calls, the stop reason and the token counts."""
        calls = reply.first.interaction.output.get("tool_calls", ())
        events: list[Mapping[str, Any]] = []
        # A reply that is not streamed has an empty text in this case.
        if not calls and not self._has_text:
            events += self._switch("text")
        events += self._close()
        for call in calls:
            events += self._call(call)
        ending = {**stop_of(reply.first), **extras_of(reply)}
        events.append({"type": "message_delta", "delta": ending, "usage": usage_of(reply)})
        events.append({"type": "message_stop"})
        return b"".join(map(sse_event, events))

    def error(self, error: RequestError) -> bytes:
        """Encode a failure in the middle of the stream."""
        return sse_event(anthropic_error(error))

    def _switch(self, kind: str) -> Iterator[Mapping[str, Any]]:
        """Close the open block and begin one of this type, unless it is open already."""
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        self._has_text = self._has_text or kind == "text"
        yield {"type": "content_block_start", "index": self._index, "content_block": _EMPTY_BLOCKS[kind]}

    def _close(self) -> Iterator[Mapping[str, Any]]:
        if not self._open:
            return
        # Clients need a signature to send the thinking block back; the API puts it at the block's end.
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": SIGNATURE})
        yield {"type": "content_block_stop", "index": self._index}
        self._open = ""
        self._index += 1

    def _call(self, call: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        yield {"type": "content_block_start", "index": self._index, "content_block": tool_use(call)}
        yield self._delta({"type": "input_json_delta", "partial_json": input_of(call)})
        yield {"type": "content_block_stop", "index": self._index}
        self._index += 1

    def _delta(self, delta: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}
