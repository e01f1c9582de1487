"""Recognise a conversation that the gateway has seen before, however the client serialised it again.

Clients send the history back with other whitespace in arguments, `null` for empty content, or additional keys. The
digest of a conversation ignores these differences. It only finds the earlier interaction: the token ids of the history
are always those that were recorded, never computed from the client's copy.
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
"""Most objects and arrays in a call's arguments that are compared by value; beyond that, by text. orjson can write 254
nested levels, so this stays safely below its limit."""


_UNSTABLE_NUMBER = re.compile(r"[0-9](?:\.0*(?![0-9])|[eE]|[0-9]{15})")
"""Numbers that JavaScript writes differently after parsing them, for example `1.0` as `1`. The pattern also matches
inside of strings, which is harmless: it only causes one more comparison."""
_FIRST_WITH_EXPONENT = 1e21
"""Smallest number that JavaScript writes with an exponent, as `1e+21`."""


class Fingerprint:
    """Hash chain over the tools and messages of a conversation: one digest per prefix.

    Digests are Python's own keyed hashes. They are valid within one process only, and take an eighth of the time of a
    cryptographic hash.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._digest = hash(orjson.dumps(tools, option=orjson.OPT_SORT_KEYS) if tools else b"")
        self._calls: dict[str, int] = {}

    def add(self, message: Message) -> int:
        """Append a message and return the digest of the conversation up to it."""
        self._digest = hash((self._digest, *self._canonical(message)))
        return self._digest

    def after(self, message: Message) -> set[int]:
        """Return every digest that the conversation may have once `message` is appended, without appending it.

        There is more than one if the client parses arguments into objects: it then writes numbers as its own language
        does.
        """
        digest, calls = self._digest, dict(self._calls)
        found = set()
        for spelling in _spellings(message):
            found.add(self.add(spelling))
            # `add` changed the chain; go back, so that every spelling is hashed after the same history.
            self._digest, self._calls = digest, dict(calls)
        return found

    def _canonical(self, message: Message) -> tuple[Any, ...]:
        role = message["role"]
        # Missing content, null and an empty text are equal.
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = orjson.dumps(content)
        if role == "assistant":
            # Many agents strip whitespace from a reply before they store it, and leave out its reasoning.
            if isinstance(content, str):
                content = content.rpartition(_THINK_END)[2].strip()
            calls = message.get("tool_calls")
            return (role, content, self._canonical_calls(calls) if calls else ())
        # A client may rewrite call ids, so a tool result is identified by the position of the call that it answers.
        answered = self._calls.get(message.get("tool_call_id") or "") if role == "tool" else None
        # Frameworks add their agent's name to assistant messages, so `name` counts for the other roles only.
        return (role, content, answered, message.get("name") or "", message.get("reasoning_content") or "")

    def _canonical_calls(self, calls: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
        for call in calls:
            self._calls.setdefault(call.get("id") or "", len(self._calls))
        return tuple((call["function"]["name"], _arguments(call["function"]["arguments"])) for call in calls)


def is_same_call(sampled: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Return whether a call that a client sent back is the sampled one, ignoring how its arguments are written."""
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
    """Parse a number as JavaScript does: every number is a double, and `1.0` is written as `1`."""
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < _FIRST_WITH_EXPONENT else number


def _arguments(text: str) -> str | bytes:
    """Return arguments in one canonical form; text that is not JSON, or nested too deeply, is returned unchanged."""
    if not text:
        return b"{}"
    # Counting brackets overestimates the depth, but does not need a parse that might recurse too deeply itself.
    if text.count("{") + text.count("[") > _DEEPEST:
        return text
    try:
        return orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONDecodeError, TypeError):  # not JSON, or integers that orjson cannot write
        return text
