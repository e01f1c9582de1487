"""Counts tokens where CAMEL's own counter would download its vocabulary.

CAMEL counts to know when a conversation grows too long for the model it was built for. In training the gateway
minds the policy's real context, so that a good guess is enough.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

_BYTES_PER_TOKEN = 4
_MARK = b"\x01"
"""Keeps the zero bytes that a piece begins with."""


class ByteEncoding:
    """Stands in for an encoding of tiktoken: a token is four bytes of UTF-8."""

    def encode(self, text: str, **_: Any) -> list[int]:
        """Cut a text into tokens."""
        data = text.encode(errors="replace")
        pieces = (data[start : start + _BYTES_PER_TOKEN] for start in range(0, len(data), _BYTES_PER_TOKEN))
        return [int.from_bytes(_MARK + piece, "big") for piece in pieces]

    def decode(self, tokens: Sequence[int]) -> str:
        """Join tokens to a text; what is cut within a character is replaced."""
        return b"".join(token.to_bytes(_BYTES_PER_TOKEN + 1, "big").lstrip(b"\0")[1:] for token in tokens).decode(
            errors="replace"
        )


def count_without_downloads() -> None:
    """Let CAMEL use the vocabularies that tiktoken has on this machine, and count bytes in place of any other."""
    from camel.utils import token_counting

    original = token_counting.get_model_encoding
    if not isinstance(original, _Local):
        token_counting.get_model_encoding = _Local(original)


class _Local:
    """Loads an encoding from tiktoken's cache, else is a `ByteEncoding`."""

    def __init__(self, original: Callable[[str], Any]) -> None:
        self._original = original

    @functools.cache  # noqa: B019  # one object per process
    def __call__(self, model: str) -> Any:
        from tiktoken import load

        download = load.read_file
        load.read_file = _refuse
        try:
            return self._original(model)
        except _NotHereError:
            return ByteEncoding()
        finally:
            load.read_file = download


class _NotHereError(Exception):
    """A vocabulary is not on this machine."""


def _refuse(source: str) -> bytes:
    raise _NotHereError(source)
