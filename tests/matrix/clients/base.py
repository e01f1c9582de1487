"""Interface of the matrix clients: run a conversation in the client's own terms, and read the client's objects."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

if TYPE_CHECKING:
    import httpx2

SYSTEM = "Be brief."


def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


ADD_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}


def run_tool(name: str, arguments: Mapping[str, Any] | str) -> str:
    """Do what a call says."""
    assert name == "add"
    return add(**(json.loads(arguments) if isinstance(arguments, str) else arguments))


@attrs.frozen(kw_only=True)
class Shown:
    """What a client's own objects show of one reply; None where the client keeps it to itself."""

    text: str
    calls: tuple[tuple[str, Mapping[str, Any], str], ...] = ()
    """Name, arguments, id."""
    finish: str | None = None
    usage: tuple[int, int] | None = None
    """Prompt and output tokens."""
    id: str | None = None
    pieces: int = 1
    """In how many pieces the text came."""


@attrs.frozen(kw_only=True)
class Door:
    """The way into the gateway that a client is given."""

    base_url: str
    api_key: str
    http_client: httpx2.AsyncClient
    """For clients that take one: of a socket, or the gateway's own that stays in process."""
    tools: bool = False
    retries: int = 0


class Client(ABC):
    """One client; `Conversation`s with the policy are made of it."""

    name: ClassVar[str]
    finish: ClassVar[tuple[str, str]] = ("stop", "tool_calls")
    """Its words for the end of a text, and of a reply that calls tools."""
    hides: ClassVar[frozenset[str]] = frozenset()
    """Fields of `Shown` that its objects do not have."""
    hides_streamed: ClassVar[frozenset[str]] = frozenset()
    """Those that they lose when they stream."""
    cannot: ClassVar[Mapping[str, str]] = {}
    """Cases that are not possible with it by design, and why."""
    is_sync: ClassVar[bool] = False
    """It blocks its thread: it cannot borrow the in-process client, and nothing can cancel it."""
    final_call: ClassVar[str] = ""
    """The tool by which its agent answers, where a plain text does not end the loop."""
    forks: ClassVar[str] = ""
    """Why a conversation with tools is no single chain of tokens: what the client changes about its own history."""

    @abstractmethod
    def talk(self, door: Door) -> Conversation:
        """Begin a conversation."""


class Conversation(ABC):
    """A dialogue that goes on from turn to turn as the client's users write it."""

    http_client: httpx2.Client | None = None
    """A blocking client's own."""

    @abstractmethod
    async def say(self, text: str, *, stream: bool = False) -> Sequence[Shown]:
        """Say something, run the tools that the policy calls, and return all its replies until one calls none."""

    @abstractmethod
    async def leave(self, text: str) -> None:
        """Say something, and go away after the first piece of the streamed reply."""

    async def close(self) -> None:
        """Release what the client holds."""
        if self.http_client is not None:
            self.http_client.close()


async def until_text(ask: Callable[[], Any], answer: Callable[[Shown], None]) -> list[Shown]:
    """Ask until a reply calls no tool, giving the results of the others' calls."""
    replies = [await ask()]
    while replies[-1].calls:
        answer(replies[-1])
        replies.append(await ask())
    return replies
