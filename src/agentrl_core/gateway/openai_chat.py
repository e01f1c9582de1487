"""Speak OpenAI's chat completions: check requests, build replies, encode streams."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import attrs
import orjson

from agentrl_core.errors import RequestError
from agentrl_core.gateway.exchange import ChatRequest, Decode, Delta, Reply
from agentrl_core.gateway.fields import Fields
from agentrl_core.gateway.openai_messages import parse_messages, parse_tools

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.types import Message

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
_FIRST_SERVER_ERROR = 500
_MOST_STOP_STRINGS = 16
_LONGEST_KEPT_CHARS = 4096
"""Of an unknown field's value; what is longer is shortened."""
_MOST_KEPT_BYTES = 65_536
"""Of all unknown fields together, shortened."""


class OpenAIChat:
    """`POST /v1/chat/completions`."""

    id_prefix = "chatcmpl-"

    def parse(self, body: Any, headers: Mapping[str, str]) -> ChatRequest:
        """Check a decoded JSON body; `RequestError` (400) names the field at fault."""
        fields = Fields(body)
        messages = parse_messages(fields.take("messages"))
        tools = parse_tools(fields.take("tools"))
        choice = _tool_choice(fields)
        if fields.integer("n", least=1) not in {None, 1}:
            raise _unsupported("n", "n > 1 is not supported: send one request per completion")
        if fields.integer("top_logprobs", least=0):
            raise _unsupported("top_logprobs", "alternatives to the sampled tokens are not available; use 0")
        if not _is_text_format(fields.take("response_format")):
            raise _unsupported("response_format", "only {'type': 'text'} is supported")
        older, newer = fields.integer("max_tokens", least=1), fields.integer("max_completion_tokens", least=1)
        stream_options = Fields(fields.take("stream_options") or {}, "stream_options.")
        return ChatRequest(
            messages=messages,
            tools=tools,
            parse_tools=bool(tools) and choice != "none",
            model=fields.text("model") or "default",
            temperature=fields.number("temperature", least=0.0, most=2.0),
            top_p=fields.number("top_p", above=0.0, most=1.0),
            top_k=fields.integer("top_k", least=-1),
            max_tokens=newer if newer is not None else older,
            stop=_stop_strings(fields.take("stop")),
            stream=fields.flag("stream"),
            include_usage=stream_options.flag("include_usage"),
            logprobs=fields.flag("logprobs"),
            return_token_ids=fields.flag("return_token_ids") or headers.get("return_token_ids") in {"1", "true"},
            ignored=_kept(fields.rest()),
        )

    def response(self, reply: Reply, decode: Decode) -> dict[str, Any]:
        """Build the body of a reply that is not streamed."""
        interaction = reply.interaction
        choice: dict[str, Any] = {
            "index": 0,
            "message": interaction.output,
            "finish_reason": reply.finish_reason,
            "logprobs": None,
        }
        body: dict[str, Any] = {
            "id": reply.id,
            "object": "chat.completion",
            "created": int(interaction.finished_at),
            "model": reply.request.model,
            "choices": [choice],
            "usage": _usage(reply),
        }
        if reply.request.logprobs:
            choice["logprobs"] = _logprobs(interaction.output_ids, interaction.logprobs, decode)
        if reply.request.return_token_ids:
            choice["token_ids"] = interaction.output_ids
            body["prompt_token_ids"] = reply.prompt_ids
        return body

    def writer(self, request: ChatRequest, reply_id: str, decode: Decode) -> OpenAIChatWriter:
        """Build the encoder of a streamed reply."""
        return OpenAIChatWriter(request=request, reply_id=reply_id, created=int(time.time()), decode=decode)

    def error(self, error: RequestError) -> dict[str, Any]:
        """Build the body of a refusal."""
        fallback = "server_error" if error.status >= _FIRST_SERVER_ERROR else "invalid_request_error"
        kind = _ERROR_TYPES.get(error.status, fallback)
        message = str(error).encode(errors="backslashreplace").decode()  # it may quote what UTF-8 cannot hold
        return {"error": {"message": message, "type": kind, "param": error.param, "code": error.code}}


@attrs.define(kw_only=True)
class OpenAIChatWriter:
    """Encodes one streamed reply: chunks of one id, `[DONE]` at the end."""

    request: ChatRequest
    reply_id: str
    created: int
    """Unix seconds."""
    decode: Decode
    _held: list[tuple[int, float]] = attrs.field(factory=list, init=False)
    """Tokens whose text has not been sent yet."""

    def begin(self) -> bytes:
        """Encode the chunk that names the role."""
        return self._chunk({"role": "assistant", "content": ""})

    def delta(self, delta: Delta) -> bytes:
        """Encode new text with all tokens since the last; empty bytes while there is none."""
        self._held.extend(zip(delta.ids, delta.logprobs, strict=True))
        return self._chunk({"content": delta.text}) if delta.text else b""

    def end(self, reply: Reply, rest: str) -> bytes:
        """Encode held-back text, tool calls, finish reason, usage and the end mark."""
        chunks = [self._chunk({"content": rest})] if rest else []
        calls = reply.interaction.output.get("tool_calls", ())
        chunks += [self._chunk({"tool_calls": [{"index": index, **call}]}) for index, call in enumerate(calls)]
        chunks.append(self._chunk({}, finish_reason=reply.finish_reason, prompt_ids=reply.prompt_ids))
        if self.request.include_usage:
            chunks.append(_event({**self._frame(), "choices": [], "usage": _usage(reply)}))
        return b"".join([*chunks, b"data: [DONE]\n\n"])

    def error(self, error: RequestError) -> bytes:
        """Encode a failure in the middle of the stream."""
        return _event(OpenAIChat().error(error))

    def _frame(self) -> dict[str, Any]:
        return {
            "id": self.reply_id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.request.model,
        }

    def _chunk(
        self, delta: Message, *, finish_reason: str | None = None, prompt_ids: tuple[int, ...] | None = None
    ) -> bytes:
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        frame = {**self._frame(), "choices": [choice]}
        if self.request.include_usage:
            frame["usage"] = None
        ids = tuple(token for token, _ in self._held)
        if self.request.logprobs and ids:
            choice["logprobs"] = _logprobs(ids, tuple(logprob for _, logprob in self._held), self.decode)
        if self.request.return_token_ids:
            choice["token_ids"] = ids
            if prompt_ids is not None:
                frame["prompt_token_ids"] = prompt_ids
        self._held.clear()
        return _event(frame)


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def _usage(reply: Reply) -> dict[str, Any]:
    prompt, output = len(reply.prompt_ids), len(reply.interaction.output_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": reply.interaction.cached_tokens},
    }


def _logprobs(ids: Sequence[int], logprobs: Sequence[float], decode: Decode) -> dict[str, Any]:
    """Every sampled token, the one that ended the turn included."""
    content = []
    for token_id, logprob in zip(ids, logprobs, strict=True):
        token = decode((token_id,))
        whole = "\ufffd" not in token  # part of a character has no text of its own
        content.append(
            {
                "token": token,
                "logprob": logprob,
                "bytes": list(token.encode()) if whole else None,
                "top_logprobs": [],
            }
        )
    return {"content": content, "refusal": None}


def _tool_choice(fields: Fields) -> str:
    choice = fields.take("tool_choice")
    if choice not in {None, "none", "auto"} if isinstance(choice, str | None) else True:
        raise _unsupported("tool_choice", 'only "auto" and "none" are supported')
    return choice or "auto"


def _is_text_format(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and value.get("type") == "text")


def _stop_strings(value: Any) -> tuple[str, ...]:
    strings = [value] if isinstance(value, str) else value or []
    if not isinstance(strings, list) or not all(isinstance(item, str) and item for item in strings):
        raise RequestError(400, "invalid_type", "stop must be a string or a list of strings, none empty", param="stop")
    if len(strings) > _MOST_STOP_STRINGS:
        raise RequestError(400, "invalid_value", f"at most {_MOST_STOP_STRINGS} stop strings", param="stop")
    return tuple(strings)


def _kept(unknown: Mapping[str, Any]) -> dict[str, Any]:
    """Return the unknown fields as the trace keeps them: large values as the beginning of their JSON."""
    kept: dict[str, Any] = {}
    for name, value in unknown.items():
        text = orjson.dumps(value).decode()
        kept[name] = value if len(text) <= _LONGEST_KEPT_CHARS else f"{text[:_LONGEST_KEPT_CHARS]}…"
    if kept and len(orjson.dumps(kept)) > _MOST_KEPT_BYTES:
        raise RequestError(
            400, "invalid_value", f"the body has {len(kept)} unknown fields, too many to keep; leave them out"
        )
    return kept


def _unsupported(param: str, message: str) -> RequestError:
    return RequestError(400, "unsupported_value", f"{param}: {message}", param=param)
