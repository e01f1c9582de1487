"""What a tool-call parser is: it reads the calls of one format out of a growing text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import attrs

if TYPE_CHECKING:
    from agentrl_core.chat.parsers.source import Source

Tools: TypeAlias = Sequence[Mapping[str, Any]]
"""The request's tools in OpenAI's shape."""

_T = TypeVar("_T")
Steps: TypeAlias = Generator[None, None, _T]
"""A reading that yields where it needs more text."""


@attrs.frozen(kw_only=True)
class ParsedReply:
    """A model's text, taken apart."""

    content: str
    """What is left for a person to read; malformed calls stay visible in it."""
    reasoning: str = ""
    """What the model thought before it said that."""
    tool_calls: tuple[dict[str, Any], ...] = ()
    """Calls in OpenAI's shape, each with an id of its own; `arguments` is the JSON text that the model wrote."""
    errors: tuple[str, ...] = ()
    """One line for each call that could not be read."""


class MalformedCallError(ValueError):
    """Why a call cannot be read."""


class Sink(Protocol):
    """Where a parser puts what it finds, in the order of the text."""

    def begin_text(self) -> None:
        """Begin a paragraph of the content."""
        ...

    def text(self, text: str) -> None:
        """Add to the content."""
        ...

    def begin_reasoning(self) -> None:
        """Begin a paragraph of the reasoning."""
        ...

    def reasoning(self, text: str) -> None:
        """Add to the reasoning."""
        ...

    def call(self, name: str, arguments: str) -> None:
        """Add a well-formed call; `arguments` is the text of a JSON object."""
        ...

    def malformed(self, text: str, error: str) -> None:
        """Keep the text of a call that cannot be read in the content, and say why it cannot."""
        ...


class ToolParser(Protocol):
    """Reads one format of tool calls.

    A parser is written as if the text were whole, and yields wherever more of it must be known. So a streamed
    reply and a whole one cannot be read differently. It raises on no text, and drops no call silently.
    """

    @property
    def openers(self) -> tuple[str, ...]:
        """Strings that begin a tool call."""
        ...

    @property
    def starters(self) -> tuple[str, ...]:
        """Strings that begin a tool call only where nothing but blanks stands before them."""
        ...

    @property
    def frames_text(self) -> bool:
        """Whether the openers also begin what is no call, so that they are read even where no tools were offered."""
        ...

    def read(self, source: Source, sink: Sink, tools: Tools) -> Steps[None]:
        """Read what begins at `source.at`, where an opener stands, and move `source.at` at least behind the opener."""
        ...

    def grammar(self, tools: Tools, *, parallel: bool, mark: Callable[[str], str]) -> str | None:
        """Return Lark rules of which `calls` derives one call of these tools, with `parallel` one or more.

        `mark` writes a string of the format as the tokenizer has it: a special token or plain text. None where the
        format cannot be held to a schema.
        """
        ...


def make_call(name: str, arguments: str, call_id: str) -> dict[str, Any]:
    """Make a call in OpenAI's shape."""
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def call_id(reply_id: str, number: int) -> str:
    """Return the id of a reply's tool call, the same in every run: templates and agents write it into prompts."""
    return f"call_{hashlib.blake2b(f'{reply_id}/{number}'.encode(), digest_size=12).hexdigest()}"
