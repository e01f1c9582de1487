"""Lengths of texts in tokens, of a tokenizer or estimated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

import attrs

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTES_PER_TOKEN = 4
"""Estimate without a tokenizer: English has about four bytes per token, Chinese one to two characters of three."""


@attrs.frozen
class TextLength:
    """Measure of texts in tokens."""

    tokenizer: Tokenizer | None = None
    """None: estimate by `BYTES_PER_TOKEN`."""

    @classmethod
    def of(cls, path: str | None, config_dir: Path | None) -> Self:
        """Read `tokenizer.json`, or the one in a folder; raises ValueError if there is none, or if it is none."""
        if path is None:
            return cls()
        from tokenizers import Tokenizer

        file = (config_dir or Path()) / Path(path).expanduser()
        file = file / "tokenizer.json" if file.is_dir() else file
        if not file.is_file():
            raise ValueError(f"tokenizer: {file} does not exist; expected a tokenizer.json or its folder")
        try:
            return cls(Tokenizer.from_file(str(file)))
        # The library raises no class of its own.
        except Exception as error:
            raise ValueError(f"tokenizer: {file} cannot be read as a tokenizer.json: {error}") from error

    def tokens(self, text: str) -> int:
        """Return the length of a text in tokens."""
        if self.tokenizer is None:
            return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def chars_within(self, text: str, max_tokens: int, *, tail: bool = False) -> int:
        """Return how many characters of a text fit into `max_tokens`, from its beginning or, with `tail`, its end."""
        if self.tokenizer is None:
            data = text.encode(errors="replace")
            room = max_tokens * BYTES_PER_TOKEN
            if len(data) <= room:
                return len(text)
            part = data[len(data) - room :] if tail else data[:room]
            return len(part.decode(errors="ignore"))
        offsets = self.tokenizer.encode(text, add_special_tokens=False).offsets
        if len(offsets) <= max_tokens:
            return len(text)
        # A character may have several tokens: it is left out if one of them is.
        if tail:
            return len(text) - max(offsets[-max_tokens][0], offsets[-max_tokens - 1][1])
        return min(offsets[max_tokens - 1][1], offsets[max_tokens][0])
