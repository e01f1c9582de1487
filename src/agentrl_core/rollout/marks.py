"""Marks of a record, `Record.marks`: short stable words that workflows and tools add while the episode runs."""

from __future__ import annotations

import re

_WORD = re.compile(r"[a-z][a-z0-9_]{0,39}")


class Marks:
    """Words of one record, each once, in the order in which they came; may be filled from any thread."""

    def __init__(self) -> None:
        self._words: dict[str, None] = {}

    def add(self, word: str) -> None:
        """Add a word; `ValueError` if it is no lower-case word of at most 40 characters."""
        if not isinstance(word, str) or _WORD.fullmatch(word) is None:
            raise ValueError(
                f"expected a word of at most 40 lower-case letters, digits and '_' that begins with a letter, found "
                f"{word!r:.60}"
            )
        self._words.setdefault(word)

    @property
    def words(self) -> tuple[str, ...]:
        """The words so far."""
        return tuple(self._words)
