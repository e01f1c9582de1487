"""What a tool-call parser must do: find the calls in a model's text, and report what it could not read."""

from __future__ import annotations

import uuid
from typing import Any, Protocol

import attrs


@attrs.frozen(kw_only=True)
class ParsedReply:
    """A model's text, taken apart."""

    content: str
    """What is left for a person to read; malformed calls stay visible in it."""
    tool_calls: tuple[dict[str, Any], ...] = ()
    """Calls in OpenAI's shape, each with an id of its own; `arguments` is the JSON text that the model wrote."""
    errors: tuple[str, ...] = ()
    """One line for each call that could not be read."""


class ToolParser(Protocol):
    """`parse(text)` never raises on any text, and never drops a call silently.

    `content` begins with the text before the first opener, without trailing blanks, so that a reply can be
    streamed up to there.
    """

    @property
    def openers(self) -> tuple[str, ...]:
        """Strings that begin a tool call."""
        ...

    def parse(self, text: str) -> ParsedReply:
        """Take a whole reply apart."""
        ...


def tool_call(name: str, arguments: str) -> dict[str, Any]:
    """Make a call in OpenAI's shape with a fresh id."""
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
