"""Cache of rendered prompts' token ids, bounded in bytes.

The keys come from clients, so a bound on the number of entries would not bound the memory.
"""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

_Key = TypeVar("_Key")

_ID_BYTES = 36
"""Memory of one id in a tuple: the pointer (8 bytes) and the integer object (28 bytes)."""
_LARGEST_SHARE = 64
"""Divisor of the cache's size: a larger entry than this share is not stored, so that one prompt cannot evict all
others."""


class IdsCache(Generic[_Key]):
    """Token ids [T] by key, at most `most_bytes` in total; usable from several threads.

    A full cache drops all of its entries. That is cheaper than keeping them in order of use at every hit.
    """

    def __init__(self, *, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._entries: dict[_Key, tuple[int, ...]] = {}

    def get(self, key: _Key) -> tuple[int, ...] | None:
        """Return the ids stored under `key`, or None."""
        return self._entries.get(key)

    def put(self, key: _Key, ids: tuple[int, ...], *, key_bytes: int) -> None:
        """Store `ids` under `key`, unless they take more than a 64th of the cache."""
        size = key_bytes + _ID_BYTES * len(ids)
        if size > self._most_bytes // _LARGEST_SHARE:
            return
        with self._lock:
            if key in self._entries:  # another thread rendered the same prompt
                return
            if self._bytes + size > self._most_bytes:
                self._entries.clear()
                self._bytes = 0
            self._entries[key] = ids
            self._bytes += size
