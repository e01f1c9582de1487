"""Helpers for formats that write arguments as bare text between tags, without JSON (GLM and Qwen3-Coder)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core.api.tool_parsers import MalformedCallError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentrl_core.api.parsing.source import Marks, Source
    from agentrl_core.api.tool_parsers import Sink, Steps


def inside(source: Source, start: int, stops: Marks, close: str, followers: Sequence[str]) -> Steps[tuple[str, int]]:
    """Return the text from `start` up to the tag `close`, and the index after the tag.

    `stops` are `close` and the tags that cannot occur in the text. `close` ends the text only if one of `followers`
    comes next; otherwise it is part of the text, because values may contain tags.
    """
    at = start
    while True:
        mark, at = yield from source.find(stops, at)
        if mark != close:
            raise MalformedCallError(f"{close} is missing")
        behind = yield from source.visible(at + len(close))
        for follower in followers:
            if (yield from source.starts(follower, behind)):
                return source.text[start:at], at + len(close)
        at += len(close)


def keep_malformed(source: Source, sink: Sink, tags: Marks, begin: int, error: str) -> Steps[None]:
    """Keep a block that cannot be read, up to and including the first closing tag, else up to the next opening tag."""
    mark, end = yield from source.find(tags, begin)
    end += len(mark) if mark.startswith("</") else 0
    sink.malformed(source.text[source.at : end], error)
    source.at = end


def block(
    source: Source, sink: Sink, tags: Marks, read: Callable[[], Steps[tuple[list[tuple[str, str]], int]]], begin: int
) -> Steps[None]:
    """Read a block's calls with `read`, which returns them and the block's end; on failure keep the block as text."""
    try:
        calls, end = yield from read()
    except MalformedCallError as error:
        yield from keep_malformed(source, sink, tags, begin, str(error))
        return
    for name, arguments in calls:
        sink.call(name, arguments)
    source.at = end
