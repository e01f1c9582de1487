"""Find the earlier call that a prompt without messages continues: an index of raw prompts by prefix.

Agents that render the template themselves send the whole text, or its token ids, with each call (legacy completions).
A prompt that begins with an earlier call's prompt and output continues from that call's ids. A text must contain all
that was sampled, including the token or string that ended the output.
"""

from __future__ import annotations

import bisect
import hashlib
import threading
from array import array
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

_Node = TypeVar("_Node")

_REPLACEMENT = "\ufffd"


class RawCalls(Generic[_Node]):
    """Index of one session's calls without messages, by text and by token ids; thread-safe."""

    def __init__(self) -> None:
        self._by_text: _Prefixes[_Node] = _Prefixes()
        self._by_ids: _Prefixes[_Node] = _Prefixes()
        self._lock = threading.Lock()

    def add(self, node: _Node, text: str, ids: Sequence[int]) -> None:
        """Add a call by its prompt and output."""
        with self._lock:
            self._by_ids.add(_bytes_of(ids), node)
            # A text with half a character in it cannot come back: a client cannot send that half.
            if _REPLACEMENT not in text:
                self._by_text.add(text.encode(), node)

    def begins_text(self, text: str) -> tuple[_Node, str] | None:
        """Return the longest call that `text` begins with, and the rest of the text; None if there is none."""
        encoded = text.encode()
        with self._lock:
            node, length = self._by_text.longest(encoded)
        return None if node is None else (node, encoded[length:].decode())

    def begins_ids(self, ids: tuple[int, ...]) -> tuple[_Node, tuple[int, ...]] | None:
        """Return the longest call that `ids` [T] begin with, and the rest of the ids; None if there is none."""
        encoded = _bytes_of(ids)
        with self._lock:
            node, length = self._by_ids.longest(encoded)
        return None if node is None else (node, ids[length // _ID_BYTES :])


class _Prefixes(Generic[_Node]):
    """Nodes by the digest of a byte string; finds the longest one that is a prefix of given data in one pass.

    Only digests are kept, grouped by length, so memory does not grow with the length of the prompts.
    """

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._nodes: dict[int, dict[bytes, _Node]] = {}

    def add(self, key: bytes, node: _Node) -> None:
        length = len(key)
        if length not in self._nodes:
            bisect.insort(self._lengths, length)
        self._nodes.setdefault(length, {})[_hasher(key).digest()] = node

    def longest(self, data: bytes) -> tuple[_Node | None, int]:
        hasher, hashed = _hasher(), 0
        found: tuple[_Node | None, int] = (None, 0)
        view = memoryview(data)
        for length in self._lengths:
            if length > len(data):
                break
            # One running hash over the data; a copy of it at each known length is looked up among those prefixes.
            hasher.update(view[hashed:length])
            hashed = length
            node = self._nodes[length].get(hasher.copy().digest())
            if node is not None:
                found = (node, length)
        return found


def _hasher(data: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=16)


def _bytes_of(ids: Sequence[int]) -> bytes:
    return array("I", ids).tobytes()


_ID_BYTES = array("I").itemsize
