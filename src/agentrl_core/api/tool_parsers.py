"""Interface of tool-call parsers (`ToolParser`), which plugins implement, and of the sink that takes their results."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import attrs

if TYPE_CHECKING:
    from agentrl_core.api.parsing.source import Source

Tools: TypeAlias = Sequence[Mapping[str, Any]]
"""The request's tools in OpenAI's shape."""

_T = TypeVar("_T")
Steps: TypeAlias = Generator[None, None, _T]
"""Generator that yields whenever more text is needed, and returns the result of the reading."""


@attrs.frozen(kw_only=True)
class ParsedReply:
    """Reply of a model, split into content, reasoning and tool calls."""

    content: str
    """Text for the user; malformed calls stay visible in it."""
    reasoning: str = ""
    """Text that the model wrote in its reasoning block."""
    tool_calls: tuple[dict[str, Any], ...] = ()
    """Calls in OpenAI's shape, each with its own id; `arguments` is the JSON text as the model wrote it."""
    errors: tuple[str, ...] = ()
    """One line for each call that could not be read."""


class MalformedCallError(ValueError):
    """A tool call cannot be read; the message says why."""


class Sink(Protocol):
    """Receiver of a parser's results, in the order of the text."""

    def begin_text(self) -> None:
        """Begin a new paragraph of the content."""
        ...

    def text(self, text: str) -> None:
        """Append to the content."""
        ...

    def begin_reasoning(self) -> None:
        """Begin a new paragraph of the reasoning."""
        ...

    def reasoning(self, text: str) -> None:
        """Append to the reasoning."""
        ...

    def call(self, name: str, arguments: str) -> None:
        """Add a well-formed call; `arguments` is the text of a JSON object."""
        ...

    def malformed(self, text: str, error: str) -> None:
        """Append the text of an unreadable call to the content, and record the reason."""
        ...


class ToolParser(Protocol):
    """Reads one format of tool calls.

    Write a parser as if the text were complete, and yield wherever more of it must be known. Then a streamed reply and
    a whole one are always read the same way. A parser never raises, whatever the text, and never drops a call silently.
    `agentrl_core.api.parsing` has helpers, and an example.

    A class may also have a method that tells whether a model writes this format. `gateway.tool_parser: auto` calls it
    with the model's chat template, and takes the first parser that it gets. Without it, a config must name the parser.

        @classmethod
        def recognise(cls, template: str) -> Self | None:
            return cls() if "[TOOL_CALLS]" in template else None
    """

    @property
    def openers(self) -> tuple[str, ...]:
        """Strings that begin a tool call anywhere in the reply."""
        ...

    @property
    def starters(self) -> tuple[str, ...]:
        """Strings that begin a tool call only if nothing but whitespace and reasoning stands before them."""
        ...

    @property
    def frames_text(self) -> bool:
        """Whether openers also begin ordinary messages, so that they are parsed even if the request has no tools."""
        ...

    def read(self, source: Source, sink: Sink, tools: Tools) -> Steps[None]:
        """Read what begins at `source.at`, where an opener stands, and move `source.at` past the opener at least."""
        ...

    def grammar(self, tools: Tools, *, parallel: bool, mark: Callable[[str], str]) -> str | None:
        """Return Lark rules in which `calls` derives one call of these tools; with `parallel`, one or more.

        `mark` writes a string of the format as the tokenizer has it: a special token, or plain text. None if a schema
        cannot be enforced in this format.
        """
        ...


def make_call(name: str, arguments: str, call_id: str) -> dict[str, Any]:
    """Return a tool call in OpenAI's shape."""
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def call_id(reply_id: str, number: int) -> str:
    """Return the id of a reply's tool call number `number`.

    Deterministic, so that equal runs have equal prompts: templates and agents write call ids into prompts.
    """
    return f"call_{hashlib.blake2b(f'{reply_id}/{number}'.encode(), digest_size=12).hexdigest()}"
