"""Print text of tasks, agents and tools, which is untrusted, so that it cannot control the terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Escape control characters, which could move the terminal's cursor or change its colours, and line ends."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\t" else repr(char)[1:-1] for char in text)


def printable_lines(text: str) -> str:
    """Escape control characters in each line of a text."""
    return "\n".join(map(printable, text.split("\n")))
