"""Token counting without downloads, for CAMEL's check of the context length.

CAMEL counts tokens to find out when a conversation grows too long for its model, and would download that model's
vocabulary. In training the gateway checks the policy's real context length, so an estimate is enough.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

_BYTES_PER_TOKEN = 4
_MARK = b"\x01"
"""Leading byte of each token's number, without which zero bytes at the beginning of a piece would be lost."""


class ByteEncoding:
    """Replacement for an encoding of tiktoken, in which a token is four bytes of UTF-8."""

    def encode(self, text: str, **_: Any) -> list[int]:
        """Split a text into tokens."""
        data = text.encode(errors="replace")
        pieces = (data[start : start + _BYTES_PER_TOKEN] for start in range(0, len(data), _BYTES_PER_TOKEN))
        return [int.from_bytes(_MARK + piece, "big") for piece in pieces]

    def decode(self, tokens: Sequence[int]) -> str:
        """Join tokens into a text; parts of a character are replaced by U+FFFD."""
        return b"".join(token.to_bytes(_BYTES_PER_TOKEN + 1, "big").lstrip(b"\0")[1:] for token in tokens).decode(
            errors="replace"
        )


def count_without_downloads() -> None:
    """Make CAMEL use the vocabularies in tiktoken's cache on this machine, and count bytes for all others."""
    from camel.utils import token_counting

    original = token_counting.get_model_encoding
    if not isinstance(original, _Local):
        token_counting.get_model_encoding = _Local(original)


class _Local:
    """Replacement for CAMEL's `get_model_encoding`: an encoding from tiktoken's cache, else a `ByteEncoding`."""

    def __init__(self, original: Callable[[str], Any]) -> None:
        self._original = original

    @functools.cache  # noqa: B019  # one object per process
    def __call__(self, model: str) -> Any:
        from tiktoken import load

        # tiktoken calls this function for a file that is not in its cache.
        download = load.read_file
        load.read_file = _refuse
        try:
            return self._original(model)
        except _NotHereError:
            return ByteEncoding()
        finally:
            load.read_file = download


class _NotHereError(Exception):
    """A vocabulary is not in tiktoken's cache."""


def _refuse(source: str) -> bytes:
    raise _NotHereError(source)
