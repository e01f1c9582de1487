"""Images in messages: where they are, and what a chat template sees of them.

A message with images has a list of parts for its content, `{"type": "text", "text": …}` and
`{"type": "image_url", "image_url": {"url": "data:…"}}`. A template only marks their places; the engine gets the images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.types import Message

IMAGE: dict[str, Any] = {"type": "image"}
"""How templates know an image."""


def images_of(messages: Sequence[Message]) -> tuple[str, ...]:
    """Return the data URLs of all images, in their order."""
    return tuple(
        part["image_url"]["url"]
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if part["type"] == "image_url"
    )


def for_template(message: Message) -> Message:
    """Return a message as templates see it: places where the images are, and no content as empty text."""
    content = message.get("content", "")
    if content is None:
        return {**message, "content": ""}
    if not isinstance(content, list):
        return message
    return {**message, "content": [IMAGE if part["type"] == "image_url" else part for part in content]}
