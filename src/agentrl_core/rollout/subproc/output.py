"""Bounded buffer for an agent's stdout and stderr, whose end goes to the run's log and into error messages."""

from __future__ import annotations

from agentrl_core.gateway.sessions import without_secrets
from agentrl_core.rollout.subproc.inside.telling import tell

_KEPT_BYTES = 16_384
"""Bytes kept of one episode: the last ones, because the reasons of a failure stand at the end."""
_LAST_LINES = 3
"""Lines that an error message quotes."""


class Output:
    """Collects what a worker writes; `take` empties it after each episode."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._dropped = 0

    def add(self, piece: bytes) -> None:
        """Append output; of all of it only the end is kept."""
        self._kept += piece
        excess = len(self._kept) - _KEPT_BYTES
        if excess > 0:
            del self._kept[:excess]
            self._dropped += excess

    def last_lines(self) -> str:
        """Return the last lines as one line; after a crash of the interpreter, the fatal error and its place."""
        lines = [line.strip() for line in self._text().splitlines() if line.strip()]
        # `faulthandler` writes the crash first and then the frames, so the last lines alone would not show it.
        crash = next((index for index, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
        if crash is not None:
            places = [line for line in lines[crash:] if line.startswith("File")]
            lines = [lines[crash], *places[: _LAST_LINES - 1]]
        return tell(" | ".join(lines[-_LAST_LINES:]))

    def take(self) -> str:
        """Return the collected output and clear it."""
        text = self._text()
        if self._dropped:
            text = f"[{self._dropped} bytes before this]\n{text}"
        self._kept.clear()
        self._dropped = 0
        return text

    def _text(self) -> str:
        text = without_secrets(self._kept.decode("utf-8", "replace"))
        return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text).rstrip()
