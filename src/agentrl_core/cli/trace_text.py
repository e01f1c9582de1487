"""Text of token ids, for commands that compare episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


def plain_decoder(folder: Path | None) -> Callable[[Sequence[int]], str]:
    """Return a function from token ids to text, special tokens included; without a folder, it returns the ids."""
    if folder is None:
        return lambda ids: " ".join(map(str, ids))
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))
