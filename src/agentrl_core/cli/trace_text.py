"""Text of token ids, for commands that compare episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core.config.terminal import printable
from agentrl_core.data.comparison import shared_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

_BEFORE, _AFTER = 12, 24
"""Tokens that are shown before and after the first one that differs."""


def plain_decoder(folder: Path | None) -> Callable[[Sequence[int]], str]:
    """Return a function from token ids to text, special tokens included; without a folder, it returns the ids."""
    if folder is None:
        return lambda ids: " ".join(map(str, ids))
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))


def parted_lines(
    one: tuple[str, Sequence[int]], other: tuple[str, Sequence[int]], decode: Callable[[Sequence[int]], str]
) -> Iterator[str]:
    """Yield text and ids of two labelled token sequences around the first token that differs, marked with `>>>`."""
    token = shared_tokens(one[1], other[1])
    for label, ids in (one, other):
        common, rest = ids[max(0, token - _BEFORE) : token], ids[token : token + _AFTER]
        yield f"  {label:<10}{printable(decode(common))} >>> {printable(decode(rest))}"
        yield f"  {'':<10}ids {list(rest)}"
