"""Find stop strings in sampled tokens, and load the tokenizer that this needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_core.errors import EngineError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Decode = Callable[[list[int]], str]
"""Function from token ids to text, special tokens included."""


def load_decode(model_dir: Path) -> Decode:
    """Return the decode function of a model directory; `EngineError` if it has no tokenizer."""
    return decoding(load_tokenizer(model_dir))


def decoding(tokenizer: Tokenizer) -> Decode:
    """Return the decode function of `tokenizer`."""
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False)


def load_tokenizer(model_dir: Path) -> Tokenizer:
    """Read the tokenizer of a model directory; `EngineError` if there is none."""
    tokenizer = read_tokenizer(model_dir)
    if tokenizer is None:
        raise EngineError(
            f"{model_dir / 'tokenizer.json'}: stop strings need the model's tokenizer, and this file is missing. "
            "Save the tokenizer into the model directory, or stop on token ids."
        )
    return tokenizer


def read_tokenizer(model_dir: Path) -> Tokenizer | None:
    """Read the tokenizer of a model directory, None if there is none; `EngineError` if it is broken."""
    from tokenizers import Tokenizer

    path = model_dir / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise EngineError(f"{path}: the tokenizer cannot be read: {error}") from error


def find_stop_string(stop: Sequence[str], ids: Sequence[int], start: int, decode: Decode) -> str | None:
    """Return the stop string that the last token completed, if any; the output begins at `ids[start]`.

    Looks at the end of the output only. A token stands for at least one byte, so a match reaches back at most as many
    tokens as the string has bytes. Four more tokens keep a character that the cut splits out of the match.
    """
    reach = max(len(text.encode()) for text in stop) + 4
    tail = decode(list(ids[max(start, len(ids) - reach) :]))
    return next((text for text in stop if text in tail), None)
