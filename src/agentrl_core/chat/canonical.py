"""Recognise a conversation that was seen before, however the client wrote it down again.

Clients send the history back with other whitespace in arguments, `null` for empty content, or keys of their
own. The digest of a conversation ignores all that; the token ids never come from here.
"""

from __future__ import annotations

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
    """A hash chain over tools and messages: one digest per prefix of a conversation.

    Digests are Python's own keyed hashes: of use within one process, and an eighth of the time of a cryptographic one.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._digest = hash(orjson.dumps(tools, option=orjson.OPT_SORT_KEYS) if tools else b"")
        self._calls: dict[str, int] = {}

    def add(self, message: Message) -> int:
        """Append a message; the digest of the conversation up to it."""
        self._digest = hash((self._digest, *self._canonical(message)))
        return self._digest

    def after(self, message: Message) -> set[int]:
        """Return the digests that the conversation may have with one more message, as clients write it back.

        Those that get arguments as objects write the numbers as their language does.
        """
        digest, calls = self._digest, dict(self._calls)
        found = set()
        for spelling in _spellings(message):
            found.add(self.add(spelling))
            self._digest, self._calls = digest, dict(calls)
        return found

    def _canonical(self, message: Message) -> tuple[Any, ...]:
        role = message["role"]
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = orjson.dumps(content)
        if role == "assistant":
            if isinstance(content, str):  # many agents strip a reply before they keep it, and leave out its thoughts
                content = content.rpartition(_THINK_END)[2].strip()
            calls = message.get("tool_calls")
            return (role, content, self._canonical_calls(calls) if calls else ())
        # Ids may be rewritten by the client: what counts is which call a result answers.
        answered = self._calls.get(message.get("tool_call_id") or "") if role == "tool" else None
        # Frameworks add their agent's name to replies, but not to what others say.
        return (role, content, answered, message.get("name") or "", message.get("reasoning_content") or "")

    def _canonical_calls(self, calls: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
        for call in calls:
            self._calls.setdefault(call.get("id") or "", len(self._calls))
        return tuple((call["function"]["name"], _arguments(call["function"]["arguments"])) for call in calls)


def is_same_call(sampled: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether a call that a client sent back is the sampled one, however its arguments are written."""
    if sampled["function"]["name"] != given["function"]["name"]:
        return False
    spellings = [call for message in _spellings({"tool_calls": [sampled]}) for call in message["tool_calls"]]
    arguments = _arguments(given["function"]["arguments"])
    return any(_arguments(call["function"]["arguments"]) == arguments for call in spellings)


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


def _arguments(text: str) -> str | bytes:
    """Return the value of arguments in one spelling; what has none as it is."""
    if not text:
        return b"{}"
    if text.count("{") + text.count("[") > _DEEPEST:  # perhaps nested deeper than orjson writes
        return text
    try:
        return orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONDecodeError, TypeError):  # not JSON, or numbers beyond what orjson writes
        return text
