"""Encode a streamed reply as the Responses API's numbered events, one output item after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import orjson

from agentrl_core.gateway.dialects.openai_replies import openai_error
from agentrl_core.gateway.dialects.responses_output import (
    call_id_kind,
    call_item,
    has_message,
    is_custom,
    item_id,
    logprobs_of,
    message_item,
    reasoning_item,
    reasoning_part,
    response_of,
    text_part,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.errors import RequestError
    from agentrl_core.gateway.call_types import ChatRequest, Decode, Delta, Reply


@attrs.define(kw_only=True)
class _OpenItem:
    """Output item (reasoning or message) that is being streamed."""

    kind: str
    """Kind of item: `rs` (reasoning) or `msg` (message)."""
    where: dict[str, Any]
    """Fields that identify the item in each of its events: its id and its indices."""
    texts: list[str] = attrs.field(factory=list)
    logprobs: list[Mapping[str, Any]] = attrs.field(factory=list)

    def item(self, status: str, *, empty: bool = False) -> dict[str, Any]:
        text = "".join(self.texts)
        if self.kind == "rs":
            return reasoning_item(self.where["item_id"], "" if empty else text, status)
        parts = [] if empty else [text_part(text, self.logprobs)]
        return message_item(self.where["item_id"], parts, status)


@attrs.define(kw_only=True)
class ResponsesWriter:
    """Encodes one streamed reply.

    Text after a call, or after later reasoning, starts another message item. The final response has all text in one
    message, like a response that is not streamed.
    """

    request: ChatRequest
    begun: Mapping[str, Any]
    """Response object as it is before the first token."""
    decode: Decode
    _number: int = attrs.field(default=0, init=False)
    """Sequence number of the next event."""
    _counts: dict[str, int] = attrs.field(factory=lambda: {"rs": 0, "msg": 0, "fc": 0}, init=False)
    """Number of items begun, by kind."""
    _open: _OpenItem | None = attrs.field(default=None, init=False)
    _held: list[Mapping[str, Any]] = attrs.field(factory=list, init=False)
    """Log-probabilities of tokens whose text is not sent yet."""

    def begin(self) -> bytes:
        """Encode the response as it is before the first token."""
        return self._event("response.created", response=self.begun) + self._event(
            "response.in_progress", response=self.begun
        )

    def delta(self, delta: Delta) -> bytes:
        """Encode new reasoning, text and calls; empty bytes if there are none."""
        if self.request.logprobs:
            self._held += delta.upstream_logprobs or logprobs_of(
                delta.ids, delta.logprobs, delta.top_logprobs, self.decode
            )
        if not delta.is_visible:
            return b""
        events = []
        if delta.reasoning:
            events += [self._switch("rs"), self._grow("response.reasoning_text.delta", delta.reasoning)]
        if delta.content:
            events += [self._switch("msg"), self._text(delta.content)]
        # Calls are complete when they come, so each opens and closes its own item at once.
        if delta.tool_calls:
            events += [self._close("completed"), *map(self._call, delta.tool_calls)]
        return b"".join(events)

    def end(self, reply: Reply) -> bytes:
        """Encode the end of the open item, and the whole response."""
        events = []
        # Agents look for a message item, which a reply without text gets only here.
        if not self._counts["msg"] and has_message(reply.first.interaction):
            events.append(self._switch("msg"))
        response = response_of(reply, self.decode)
        events += [self._close(response["status"]), self._event(f"response.{response['status']}", response=response)]
        return b"".join(events)

    def error(self, error: RequestError) -> bytes:
        """Encode a failure in the middle of the stream.

        Its fields are flat, as OpenAI documents them, and also nested under `error`, where OpenAI's SDK reads them.
        """
        described = openai_error(error)["error"]
        flat = {key: described[key] for key in ("code", "message", "param")}
        return self._event("error", **flat, error=described)

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = orjson.dumps({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)

    def _place(self, kind: str, id_kind: str = "") -> dict[str, Any]:
        """Return the id and the output index of a new item, and count it; the id may name a kind of its own."""
        place = {
            "item_id": item_id(id_kind or kind, self.begun["id"], self._counts[kind]),
            "output_index": sum(self._counts.values()),
        }
        self._counts[kind] += 1
        return place

    def _switch(self, kind: str) -> bytes:
        """Encode the end of the open item and the begin of one of this kind, unless it is open already."""
        if self._open is not None and self._open.kind == kind:
            return b""
        closing = self._close("completed")
        place = self._place(kind)
        self._open = item = _OpenItem(kind=kind, where={**place, "content_index": 0})
        added = self._event(
            "response.output_item.added",
            output_index=place["output_index"],
            item=item.item("in_progress", empty=True),
        )
        part = text_part("") if kind == "msg" else reasoning_part("")
        return closing + added + self._event("response.content_part.added", **item.where, part=part)

    def _text(self, text: str) -> bytes:
        logprobs, self._held = self._held, []
        if self._open is not None:
            self._open.logprobs += logprobs
        return self._grow("response.output_text.delta", text, logprobs=logprobs)

    def _grow(self, kind: str, text: str, **fields: Any) -> bytes:
        if self._open is None:
            return b""
        self._open.texts.append(text)
        return self._event(kind, **self._open.where, delta=text, **fields)

    def _close(self, status: str) -> bytes:
        """Encode the end of the open item, if there is one."""
        item, self._open = self._open, None
        if item is None:
            return b""
        text = "".join(item.texts)
        if item.kind == "msg":
            # Tokens without text of their own, such as the one that ends the turn, belong to the last text.
            item.logprobs += self._held
            self._held = []
            part = text_part(text, item.logprobs)
            done = self._event("response.output_text.done", **item.where, text=text, logprobs=item.logprobs)
        else:
            part = reasoning_part(text)
            done = self._event("response.reasoning_text.done", **item.where, text=text)
        done += self._event("response.content_part.done", **item.where, part=part)
        return done + self._event(
            "response.output_item.done", output_index=item.where["output_index"], item=item.item(status)
        )

    def _call(self, call: Mapping[str, Any]) -> bytes:
        forms = self.request.tool_forms
        place = self._place("fc", call_id_kind(call, forms))
        begun = call_item(place["item_id"], call, forms, begun=True)
        item = call_item(place["item_id"], call, forms)
        if is_custom(call, forms):
            kind, text, done = "custom_tool_call_input", item["input"], {"input": item["input"]}
        else:
            kind, text = "function_call_arguments", item["arguments"]
            done = {"name": item["name"], "arguments": text}
        return b"".join(
            [
                self._event("response.output_item.added", output_index=place["output_index"], item=begun),
                self._event(f"response.{kind}.delta", **place, delta=text),
                self._event(f"response.{kind}.done", **place, **done),
                self._event("response.output_item.done", output_index=place["output_index"], item=item),
            ]
        )
