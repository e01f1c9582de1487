"""Images in messages: extract their URLs, and replace them by the placeholders that chat templates expect.

The content of a message with images is a list of parts, `{"type": "text", "text": …}` and `{"type": "image_url",
"image_url": {"url": "data:…"}}`. A template only marks where an image stands. The engine gets the images themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.types import Message

IMAGE: dict[str, Any] = {"type": "image"}
"""Part of a message that chat templates recognise as an image."""


def images_of(messages: Sequence[Message]) -> tuple[str, ...]:
    """Return the data URLs of all images, in the order in which they appear."""
    return tuple(
        part["image_url"]["url"]
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if part["type"] == "image_url"
    )


def for_template(message: Message) -> Message:
    """Return a message as templates expect it: placeholders instead of images, and empty text instead of no content."""
    content = message.get("content", "")
    if content is None:
        return {**message, "content": ""}
    if not isinstance(content, list):
        return message
    return {**message, "content": [IMAGE if part["type"] == "image_url" else part for part in content]}
