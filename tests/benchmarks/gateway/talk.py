"""Conversations for the gateway's benchmark: requests of an agent turn by turn, each with its own text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import orjson
from tests.benchmarks.gateway.model import words

if TYPE_CHECKING:
    from tests.benchmarks.gateway.raw_client import Answer, Target

NEW_CHARS = 280
"""Of each message after the first; the bar is for at most 300."""
BODY_BYTES = 4096
"""Of the measured request, history included."""


@attrs.define(kw_only=True)
class Talk:
    """One agent's conversation with one server."""

    target: Target
    model: str = "default"
    messages: list[dict[str, Any]]
    fields: dict[str, Any] = attrs.field(factory=dict)
    """Of the body, beside model and messages."""

    def request(self) -> bytes:
        """Return the next call as it goes over the wire."""
        return self.target.request(self.body())

    def body(self) -> bytes:
        """Return the next call's JSON."""
        body = {"model": self.model, "messages": self.messages, "temperature": 1.0, "max_tokens": 64, **self.fields}
        return orjson.dumps(body)

    def reply(self, answer: Answer, new: str) -> None:
        """Take an answer, and go on with a new message."""
        message = orjson.loads(answer.body)["choices"][0]["message"]
        self.messages.append({"role": "assistant", "content": message["content"]})
        self.say(new)

    def say(self, new: str) -> None:
        """Go on with a new message."""
        self.messages.append({"role": "user", "content": new})


def text(seed: object, chars: int) -> str:
    """Return a text of that length that no other seed has."""
    pieces, length = [], 0
    for word in words(seed):
        pieces.append(word)
        length += len(word) + 1
        if length > chars:
            break
    return " ".join(pieces)[:chars].ljust(chars, ".")


def opening(seed: object, chars: int) -> list[dict[str, Any]]:
    """Return the first messages of a conversation: instructions and a task."""
    return [
        {"role": "system", "content": text((seed, "system"), chars - NEW_CHARS)},
        {"role": "user", "content": text((seed, 0), NEW_CHARS)},
    ]


def opening_chars(*, turns: int, reply_chars: int) -> int:
    """Return how long the opening is when the body of turn `turns` shall have `BODY_BYTES`."""
    frame = len(json.dumps({"role": "assistant", "content": ""}))
    return BODY_BYTES - 150 - (turns - 1) * (reply_chars + NEW_CHARS + 2 * frame)
