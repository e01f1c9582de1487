"""Upstream of all measured proxies: prepared replies over raw sockets, about 0.1 ms of CPU each.

It answers chat completions like vLLM, with token ids and logprobs. It also has short forms of Messages and Responses,
for proxies that pass these requests on unchanged.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any

import uvloop
from tests.benchmarks.gateway.talk import text

TOKENS = 64
END_OF_TURN = 31_999
"""In the benchmark's own tokenizer."""
DIFFERENT = 211
"""Replies, said in turn."""
CALL = {"id": "call_mock", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"


def token_ids(number: int) -> list[int]:
    """Return the ids of one of the replies: a client can tell whether they got through."""
    return [20_000 + (number * TOKENS + index) % 9_000 for index in range(TOKENS)]


def completion(number: int, *, tools: bool = False) -> dict[str, Any]:
    """Return one chat completion."""
    message: dict[str, Any] = {"role": "assistant", "content": text(("mock", number), 320)}
    if tools:
        message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    logprobs = [
        {"token": f"token_id:{token}", "logprob": -0.25, "bytes": None, "top_logprobs": []}
        for token in token_ids(number)
    ]
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": "tool_calls" if tools else "stop",
        "logprobs": {"content": logprobs},
        "token_ids": token_ids(number),
    }
    return {
        "id": f"chatcmpl-mock{number}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "mock",
        "choices": [choice],
        "usage": {
            "prompt_tokens": 900,
            "completion_tokens": TOKENS,
            "total_tokens": 900 + TOKENS,
            "prompt_tokens_details": {"cached_tokens": 800},
        },
        "prompt_token_ids": list(range(900)),
    }


def reply_ids(number: int, tokens: int = TOKENS) -> tuple[int, ...]:
    """Return the ids of one of the replies that end their turn."""
    return (*token_ids(number)[: tokens - 1], END_OF_TURN)


def raw_completion(number: int, tokens: int = TOKENS) -> dict[str, Any]:
    """Return one reply of vLLM's `/inference/v1/generate` to a prompt of token ids; it ends its turn."""
    ids = reply_ids(number, tokens)
    likeliest = [{"token_id": token, "logprob": -0.25 - token, "rank": token + 1} for token in (0, 1, 2)]
    content = [
        {"token_id": token, "logprob": -0.25, "rank": 1, "top_logprobs": likeliest if tokens == 1 else []}
        for token in ids
    ]
    choice = {"index": 0, "finish_reason": "stop", "token_ids": ids, "logprobs": {"content": content}}
    return {
        "request_id": f"cmpl-{number}",
        "model": "mock",
        "choices": [choice],
        "usage": {"completion_tokens": tokens},
    }


def _json(value: Any) -> bytes:
    body = json.dumps(value).encode()
    return _HEAD % (b"application/json", len(body)) + body


def _stream() -> bytes:
    frame = {"id": "chatcmpl-stream", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "mock"}
    chunks: list[dict[str, Any]] = [
        {"index": 0, "delta": {"role": "assistant", "content": f"word{index} "}, "finish_reason": None}
        for index in range(8)
    ]
    chunks.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    body = b"".join(b"data: " + json.dumps({**frame, "choices": [chunk]}).encode() + b"\n\n" for chunk in chunks)
    body += b"data: [DONE]\n\n"
    return _HEAD % (b"text/event-stream", len(body)) + body


_MESSAGES = _json(
    {
        "id": "msg_mock",
        "type": "message",
        "role": "assistant",
        "model": "mock",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 2},
    }
)
_RESPONSES = _json(
    {
        "id": "resp_mock",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "model": "mock",
        "output": [
            {
                "type": "message",
                "id": "msg_mock",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "hello", "annotations": []}],
            }
        ],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 9,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 11,
        },
    }
)
_CARD = {"id": "mock", "object": "model", "created": 0, "owned_by": "mock", "max_model_len": 1_000_000}
_MODELS = _json({"object": "list", "data": [_CARD]})
_REPLIES: list[bytes] = []
_RAW: list[bytes] = []
_PROBED = _json(raw_completion(0, 1))
_STREAM = _stream()
_CALLED = _json(completion(0, tools=True))


class _Answering(asyncio.Protocol):
    """One connection."""

    numbers: Iterator[int] = itertools.count()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._got = b""

    def data_received(self, data: bytes) -> None:
        self._got += data
        while (end := self._got.find(b"\r\n\r\n")) >= 0:
            head = self._got[:end].lower()
            length = 0
            if (at := head.find(b"content-length:")) >= 0:
                length = int(head[at + 15 :].split(b"\r\n", 1)[0])
            if len(self._got) < end + 4 + length:
                return
            body = self._got[end + 4 : end + 4 + length]
            self._got = self._got[end + 4 + length :]
            self._transport.write(self._answer(head, body))

    def _answer(self, head: bytes, body: bytes) -> bytes:
        if head.startswith(b"get "):
            return _MODELS
        path = head.split(b" ", 2)[1]
        for route, reply in ((b"/messages", _MESSAGES), (b"/responses", _RESPONSES)):
            if path.endswith(route):
                return reply
        number = next(self.numbers)
        if not path.endswith(b"/chat/completions"):
            return _PROBED if b'"max_tokens":1,' in body else _RAW[number % DIFFERENT]
        if b'"stream":true' in body or b'"stream": true' in body:
            return _STREAM
        return _CALLED if b'"tools":[{' in body or b'"tools": [{' in body else _REPLIES[number % DIFFERENT]


async def main() -> None:
    """Serve until stdin ends; the first line says where."""
    _REPLIES.extend(_json(completion(number)) for number in range(DIFFERENT))
    _RAW.extend(_json(raw_completion(number)) for number in range(DIFFERENT))
    server = await asyncio.get_running_loop().create_server(_Answering, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    print(json.dumps({"url": f"http://{host}:{port}"}), flush=True)  # noqa: T201 - the line that the benchmark waits for
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main())
