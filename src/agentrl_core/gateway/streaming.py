"""Give out a growing reply as text, but never a piece that may still turn out to be something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.chat.tokenizer import StreamDecoder


class TextStream:
    """Decodes sampled ids and holds back what may be the start of a tool call or of a stop string.

    From the first of those on everything waits for the end, when the whole reply is parsed.
    """

    def __init__(self, decoder: StreamDecoder, *, openers: Sequence[str], stop: Sequence[str]) -> None:
        self._decoder = decoder
        self._strip = bool(openers)  # blanks before a tool call are not content
        self._marks = (*openers, *stop)
        self._pending = ""
        self._halted = False
        self._sent: list[str] = []

    def feed(self, ids: Sequence[int]) -> str:
        """Return the text that is certain with these ids."""
        self._pending += self._decoder.feed(ids)
        if self._halted or not self._pending:
            return ""
        found = [at for mark in self._marks if (at := self._pending.find(mark)) >= 0]
        self._halted = bool(found)
        certain = self._pending[: min(found, default=self._certain_length())]
        if self._strip:
            certain = certain.rstrip()
        self._pending = self._pending[len(certain) :]
        self._sent.append(certain)
        return certain

    def rest(self, content: str) -> str:
        """Return the part of the finished reply's content that has not been given out."""
        return content.removeprefix("".join(self._sent))

    def _certain_length(self) -> int:
        """Length of the pending text without an end that may be the beginning of a mark."""
        longest = max((len(mark) for mark in self._marks), default=1) - 1
        for start in range(max(len(self._pending) - longest, 0), len(self._pending)):
            if any(mark.startswith(self._pending[start:]) for mark in self._marks):
                return start
        return len(self._pending)
