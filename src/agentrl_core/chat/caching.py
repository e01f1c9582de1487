"""A cache of token ids by what they were made of, bounded in bytes: its keys are what clients send."""

from __future__ import annotations

from typing import Generic, TypeVar

_Key = TypeVar("_Key")

_ID_BYTES = 36
"""Of one id in a tuple: the pointer and the integer."""
_LARGEST_SHARE = 64
"""An entry may take one of so many shares of the cache."""


class IdsCache(Generic[_Key]):
    """Token ids [T] by key. A full cache starts anew, which is cheaper than ordering it at every hit."""

    def __init__(self, *, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._entries: dict[_Key, tuple[int, ...]] = {}

    def get(self, key: _Key) -> tuple[int, ...] | None:
        """Return what was kept under a key."""
        return self._entries.get(key)

    def put(self, key: _Key, ids: tuple[int, ...], *, key_bytes: int) -> None:
        """Keep ids, unless they are too large."""
        size = key_bytes + _ID_BYTES * len(ids)
        if size > self._most_bytes // _LARGEST_SHARE:
            return
        if self._bytes + size > self._most_bytes:
            self._entries.clear()
            self._bytes = 0
        self._entries[key] = ids
        self._bytes += size
