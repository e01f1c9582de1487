"""A server on this machine that repeats the recorded replies of other models, for the replay of an episode."""

from __future__ import annotations

import concurrent.futures
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from agentrl_core.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.types import Episode, Interaction

_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id")
"""Keys of a message that an upstream is sent."""


class UpstreamReplay:
    """Chat completions of all upstreams of one episode; each recorded reply is given once, to the same messages."""

    def __init__(self, episode: Episode) -> None:
        self._left = [item for item in episode.interactions if item.upstream]
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.answered = 0
        """Replies given."""
        self.diverged: concurrent.futures.Future[str] = concurrent.futures.Future()
        """Done at the first call that the episode does not contain, with a line that describes it."""

    def __enter__(self) -> Self:
        """Start the server."""
        threading.Thread(target=self._server.serve_forever, name="agentrl-upstreams", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()

    @property
    def left(self) -> list[Interaction]:
        """Recorded calls that the replay has not made."""
        return list(self._left)

    def url(self, name: str) -> str:
        """Return the address that takes the place of an upstream's own."""
        return f"http://127.0.0.1:{self._server.server_port}/{name}"

    def reply(self, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the chat completion for a request; None, and note the divergence, if none was recorded."""
        asked, count = [_plain(message) for message in body["messages"]], int(body.get("n") or 1)
        with self._lock:
            same = [
                item
                for item in self._left
                if item.upstream == body["model"] and [_plain(message) for message in item.messages] == asked
            ][:count]
            if len(same) < count:
                if not self.diverged.done():
                    last = json.dumps(asked[-1] if asked else None, ensure_ascii=False)
                    self.diverged.set_result(f"upstream {body['model']}: a call was not recorded; it ends with {last}")
                return None
            names = {item.id for item in same}
            self._left = [item for item in self._left if item.id not in names]
            self.answered += count
        choices = [
            {"index": index, "message": item.output, "finish_reason": _finish_reason(item)}
            for index, item in enumerate(same)
        ]
        return {"id": same[0].id, "object": "chat.completion", "created": 0, "model": body["model"], "choices": choices}


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    return {key: message[key] for key in _KEYS if message.get(key)}


def _finish_reason(item: Interaction) -> str:
    if item.output.get("tool_calls"):
        return "tool_calls"
    return "length" if item.finish_reason is FinishReason.LENGTH else "stop"


def _as_stream(completion: Mapping[str, Any]) -> bytes:
    """Return a completion as server-sent events, each choice in one piece."""
    events = []
    for choice in completion["choices"]:
        message = choice["message"]
        calls = [{**call, "index": place} for place, call in enumerate(message.get("tool_calls") or ())]
        delta = {**message, **({"tool_calls": calls} if calls else {})}
        piece = {"index": choice["index"], "delta": delta, "finish_reason": choice["finish_reason"]}
        events.append({**completion, "object": "chat.completion.chunk", "choices": [piece]})
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode() + b"data: [DONE]\n\n"


def _handler(replies: UpstreamReplay) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            completion = replies.reply(body)
            if completion is None:
                self._send(400, "application/json", b'{"error": {"message": "not recorded"}}')
            elif body.get("stream"):
                self._send(200, "text/event-stream", _as_stream(completion))
            else:
                self._send(200, "application/json", json.dumps(completion).encode())

        def _send(self, status: int, kind: str, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Write nothing to the terminal."""

    return Handler
