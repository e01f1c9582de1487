"""Incremental text source of the parsers: each query waits until its answer can no longer change.

This is why a streamed reply and a whole one are parsed by the same code.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agentrl_core.api.tool_parsers import Steps

_VISIBLE = re.compile(r"\S")
_IN_STRING = re.compile(r'(?:[^"\\]|\\.)*+', re.DOTALL)
_OUTSIDE = re.compile(r"[^\sa-z0-9E.+\-:,]")
"""Characters that matter between the strings of JSON: quotes, brackets, and characters that are not allowed there."""


class Marks:
    """Set of strings to search for, all at once."""

    def __init__(self, marks: Iterable[str]) -> None:
        ordered = sorted(set(marks), key=len)
        # A mark that begins with a shorter mark could never be found: the shorter one is certain first.
        self.strings = tuple(
            mark for index, mark in enumerate(ordered) if not any(mark.startswith(other) for other in ordered[:index])
        )
        self._firsts = re.compile("|".join({re.escape(mark[0]) for mark in self.strings}) or "(?!)")
        self._longest = max(map(len, self.strings), default=0)

    def search(self, text: str, start: int, *, final: bool) -> tuple[str, int]:
        """Return the first mark at or after `start`, and its index.

        Without `final` the text may still grow. Without a mark, or if one that begins earlier may still appear, return
        an empty string and the index before which no mark begins.
        """
        mark, end = self._first(text, start)
        if not final and len(text) - end < self._longest:
            # Only the last characters can be the beginning of a mark that is not complete yet.
            begun = self._begun(text, max(start, len(text) - self._longest + 1), end)
            if begun < end:
                return "", begun
        return mark, end

    def _first(self, text: str, start: int) -> tuple[str, int]:
        """Return the first mark and its index; an empty string and the text's length if there is none."""
        found = self._pattern.search(text, start)
        return (found[0], found.start()) if found else ("", len(text))

    @functools.cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.strings)) or "(?!)")

    def _begun(self, text: str, start: int, end: int) -> int:
        """Return the first index from which the rest of the text is the beginning of a mark; `end` if there is none."""
        while (first := self._firsts.search(text, start, end)) is not None:
            start = first.start()
            tail = text[start:]
            if any(mark.startswith(tail) for mark in self.strings):
                return start
            start += 1
        return end


class LongMarks(Marks):
    """A few strings of any length, such as a request's stop strings, of which only the first match is needed.

    A single pattern would try all of them at every character. That takes quadratic time if they begin alike, and far
    longer to compile. `str.find` is linear and costs one pass over the text per string.
    """

    def _first(self, text: str, start: int) -> tuple[str, int]:
        first, end = "", len(text)
        for mark in self.strings:
            # Only a mark that begins before `end` can be earlier than the one already found.
            at = text.find(mark, start, end + len(mark) - 1)
            if 0 <= at < end:
                first, end = mark, at
        return first, end


class Source:
    """Text of a reply as far as it is known.

    Indexes into `text` stay valid until `copy` is called, which drops the text that it passed on.
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        """Index at which reading continues."""
        self.final = False
        """Whether the text is complete."""

    def copy(self, marks: Marks, emit: Callable[[str], None]) -> Steps[str]:
        """Pass text to `emit` up to the next mark, which is returned and not passed; return "" at the end."""
        while True:
            mark, end = marks.search(self.text, self.at, final=self.final)
            if end > self.at:
                emit(self.text[self.at : end])
            self.text, self.at = self.text[end:], 0
            if mark or self.final:
                return mark
            yield

    def find(self, marks: Marks, start: int) -> Steps[tuple[str, int]]:
        """Return the next mark and its index; an empty string and the text's length if none follows."""
        while True:
            mark, start = marks.search(self.text, start, final=self.final)
            if mark or self.final:
                return mark, start
            yield

    def visible(self, start: int) -> Steps[int]:
        """Return the index of the first character from `start` on that is not whitespace; else the text's length."""
        while True:
            found = _VISIBLE.search(self.text, start)
            if found:
                return found.start()
            start = len(self.text)
            if self.final:
                return start
            yield

    def starts(self, prefix: str, at: int) -> Steps[bool]:
        """Return whether `prefix` stands at `at`."""
        while True:
            if self.text.startswith(prefix, at):
                return True
            if self.final or not prefix.startswith(self.text[at:]):
                return False
            yield

    def json_end(self, start: int) -> Steps[tuple[int, bool]]:
        """Return the index after the JSON object or array that begins at `start`, and True.

        If it does not end, or contains characters that JSON does not allow, return the index reached and False. Only
        brackets and strings are checked: the text in between may still be invalid JSON.
        """
        depth, at = 0, start
        while True:
            found = _OUTSIDE.search(self.text, at)
            if found is None:
                at = len(self.text)
                if self.final:
                    return at, False
                yield
                continue
            at = found.end()
            character = found[0]
            if character in "{[":
                depth += 1
            elif character in "}]":
                depth -= 1
                if depth <= 0:
                    return at, depth == 0
            elif character == '"':
                at, closed = yield from self._string_end(at)
                if not closed:
                    return at, False
            else:
                return at - 1, False

    def _string_end(self, at: int) -> Steps[tuple[int, bool]]:
        """Return the index after the closing quote of the string that contains `at`, and whether there is one."""
        while True:
            inside = _IN_STRING.match(self.text, at)
            at = inside.end() if inside else at
            if self.text.startswith('"', at):
                return at + 1, True
            if self.final:
                return len(self.text), False
            yield
