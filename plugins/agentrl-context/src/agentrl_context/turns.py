"""Split a conversation into its beginning and its turns, so that no tool result is separated from its call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.types import Message


@attrs.frozen
class Turns:
    """A conversation in two parts."""

    head: tuple[Message, ...]
    """Messages before the first reply: the system prompt and the task."""
    turns: tuple[tuple[Message, ...], ...]
    """Replies, each with all messages up to the next reply."""

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Turns:
        """Split a conversation."""
        replies = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        ends = [*replies, len(messages)][1:]
        first = replies[0] if replies else len(messages)
        return cls(
            tuple(messages[:first]),
            tuple(tuple(messages[start:end]) for start, end in zip(replies, ends, strict=True)),
        )

    def newest(self, count: int) -> list[Message]:
        """Return the messages of the last `count` turns."""
        return [message for turn in self.turns[max(len(self.turns) - count, 0) :] for message in turn]


def with_text(message: Message, text: str) -> Message:
    """Return a message with further text at its end."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return {**message, "content": f"{content}\n\n{text}" if content else text}
    return {**message, "content": [*content, {"type": "text", "text": text}]}


def text_of(message: Message) -> str:
    """Return the text of a message's content, without images."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text") or "" for part in content if part.get("type") == "text")
