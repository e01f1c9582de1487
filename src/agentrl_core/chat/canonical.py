"""Recognise a conversation that was seen before, however the client wrote it down again.

Clients send the history back with other whitespace in arguments, `null` for empty content, or keys of their
own. The digest of a conversation ignores all that; the token ids never come from here.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agentrl_core.types import Message

_THINK_END = "</think>"

_DEEPEST = 200
"""Objects and arrays in arguments that are compared by value, not by text; orjson writes 254 levels."""


_UNSTABLE_NUMBER = re.compile(r"[0-9](?:\.0*(?![0-9])|[eE]|[0-9]{15})")
"""What may be a number that JavaScript writes otherwise once it has read it; text that looks so does no harm."""
_FIRST_WITH_EXPONENT = 1e21
"""Where JavaScript begins to write numbers as `1e+21`."""


class Fingerprint:
    """A hash chain over tools and messages: one digest per prefix of a conversation."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._digest = hashlib.blake2b(orjson.dumps(list(tools), option=orjson.OPT_SORT_KEYS), digest_size=16).digest()
        self._calls: dict[str, int] = {}

    def add(self, message: Message) -> bytes:
        """Append a message; the digest of the conversation up to it."""
        hasher = hashlib.blake2b(self._digest, digest_size=16)
        canonical = self._canonical(message)
        try:
            encoded = orjson.dumps(canonical, option=orjson.OPT_SORT_KEYS)
        except TypeError:  # text that UTF-8 cannot hold
            encoded = json.dumps(canonical, sort_keys=True).encode()
        hasher.update(encoded)
        self._digest = hasher.digest()
        return self._digest

    def after(self, message: Message) -> set[bytes]:
        """Return the digests that the conversation may have with one more message, as clients write it back.

        Those that get arguments as objects write the numbers as their language does.
        """
        digest, calls = self._digest, dict(self._calls)
        found = set()
        for spelling in _spellings(message):
            found.add(self.add(spelling))
            self._digest, self._calls = digest, dict(calls)
        return found

    def _canonical(self, message: Message) -> list[Any]:
        role = message["role"]
        content = message.get("content") or ""
        if role == "assistant" and isinstance(content, str):
            # Many agents strip a reply before they keep it, and leave out its thoughts.
            content = content.rpartition(_THINK_END)[2].strip()
        calls = message.get("tool_calls") or ()
        for call in calls:
            self._calls.setdefault(call.get("id") or "", len(self._calls))
        return [
            role,
            content,
            [[call["function"]["name"], _arguments(call["function"]["arguments"])] for call in calls],
            # Ids may be rewritten by the client: what counts is which call a result answers.
            self._calls.get(message.get("tool_call_id") or "") if role == "tool" else None,
            "" if role == "assistant" else message.get("name") or "",  # frameworks add their agent's name
            "" if role == "assistant" else message.get("reasoning_content") or "",
        ]


def _spellings(message: Message) -> Iterator[Message]:
    yield message
    calls = message.get("tool_calls") or ()
    if any(_UNSTABLE_NUMBER.search(call["function"]["arguments"]) for call in calls):
        yield {**message, "tool_calls": [_as_javascript(call) for call in calls]}


def _as_javascript(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call["function"]
    try:
        value = json.loads(function["arguments"], parse_float=_number, parse_int=_number)
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": json.dumps(value)}}


def _number(text: str) -> float | int:
    """Read a number as JavaScript does, which has doubles only and writes `1.0` as `1`."""
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < _FIRST_WITH_EXPONENT else number


def _arguments(text: str) -> Any:
    if not text:
        return {}
    if text.count("{") + text.count("[") > _DEEPEST:  # perhaps nested deeper than orjson writes
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
