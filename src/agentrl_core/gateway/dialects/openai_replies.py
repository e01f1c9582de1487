"""Build the parts of replies that OpenAI's APIs share: errors, usage, log-probabilities, bodies, chunks."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.errors import RequestError
    from agentrl_core.gateway.call_types import ChatRequest, Choice, Decode, Reply

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_FIRST_SERVER_ERROR = 500


def openai_error(error: RequestError) -> dict[str, Any]:
    """Build the body of a refusal."""
    fallback = "server_error" if error.status >= _FIRST_SERVER_ERROR else "invalid_request_error"
    kind = _ERROR_TYPES.get(error.status, fallback)
    return {"error": {"message": shown(error), "type": kind, "param": error.param, "code": error.code}}


def shown(error: RequestError) -> str:
    """Return the message of a refusal, escaped where it quotes text that UTF-8 cannot encode."""
    return str(error).encode(errors="backslashreplace").decode()


def usage_of(reply: Reply) -> dict[str, Any]:
    """Build the token counts in the format of chat completions and completions."""
    usage = reply.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def logprobs_of(
    ids: Sequence[int],
    logprobs: Sequence[float],
    top_logprobs: Sequence[Sequence[tuple[int, float]]],
    decode: Decode,
) -> dict[str, Any]:
    """Build the log-probabilities of all sampled tokens, including the one that ended the turn."""
    # A reply of 2,000 tokens may have 20 likely ones at each, and all clients wait while these are decoded.
    decode = functools.cache(decode)
    content = [
        {**token_logprob(token, logprob, decode), "top_logprobs": []}
        for token, logprob in zip(ids, logprobs, strict=True)
    ]
    # There are no `top_logprobs` where the request asked for none.
    for entry, likeliest in zip(content, top_logprobs, strict=False):
        entry["top_logprobs"] = [token_logprob(token, logprob, decode) for token, logprob in likeliest]
    return {"content": content, "refusal": None}


def token_logprob(token_id: int, logprob: float, decode: Decode) -> dict[str, Any]:
    """Build one token with its log-probability."""
    token = decode((token_id,))
    whole = "\ufffd" not in token  # a token that is part of a character has no text, so its bytes are unknown
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()) if whole else None}


def sse_event(data: Mapping[str, Any]) -> bytes:
    """Encode one server-sent event."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


def completion(reply: Reply, kind: str, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Build the body of a reply of chat completions or completions, which is not streamed."""
    return {
        "id": reply.id,
        "object": kind,
        "created": int(reply.first.interaction.finished_at),
        "model": reply.request.model,
        "choices": choices,
        "usage": usage_of(reply),
    }


@attrs.define(kw_only=True)
class ChunkWriter(ABC):
    """Encodes a streamed reply of chat completions or completions as chunks with one id, and `[DONE]` at the end."""

    request: ChatRequest
    reply_id: str
    created: int
    """Unix seconds."""
    decode: Decode
    kind: ClassVar[str]
    """Value of `object` in each chunk."""

    def end(self, reply: Reply) -> bytes:
        """Encode finish reasons, usage and the end mark."""
        chunks = [self._last_chunk(index, choice) for index, choice in enumerate(reply.choices)]
        if self.request.include_usage:
            chunks.append(self._event([], usage=usage_of(reply)))
        return b"".join([*chunks, b"data: [DONE]\n\n"])

    def error(self, error: RequestError) -> bytes:
        """Encode a failure in the middle of the stream."""
        return sse_event(openai_error(error))

    @abstractmethod
    def _last_chunk(self, index: int, choice: Choice) -> bytes:
        """Encode a choice's finish reason."""

    def _event(
        self, choices: Sequence[Mapping[str, Any]], usage: Mapping[str, Any] | None = None, **more: object
    ) -> bytes:
        frame: dict[str, Any] = {
            "id": self.reply_id,
            "object": self.kind,
            "created": self.created,
            "model": self.request.model,
            "choices": choices,
        }
        # As in OpenAI's streams: with `include_usage`, every chunk has the field, and only the last one has counts.
        if self.request.include_usage:
            frame["usage"] = usage
        return sse_event({**frame, **more} if more else frame)
