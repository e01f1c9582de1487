"""Index of the prefix cache: which token prefixes have their keys and values in the store, block by block.

A prefix is a chain of blocks of `block_tokens` ids each; the last one may have fewer. A block is identified by the
block before it and its own ids. So a lookup costs one hash per block, whatever the store holds, and prefixes with a
common beginning share its blocks. A block with fewer ids is found by prompts that end with it, as in a group of one
prompt.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

Key = tuple[int, tuple[int, ...]]
"""(block before this one, or -1 at the start; ids of this block, fewer only at the end of a prefix)."""

ROOT = -1


class PrefixIndex:
    """Maps prefixes to `num_blocks` block numbers and evicts the least recently used blocks.

    Holds no keys or values itself. Within a chain, earlier blocks always count as more recently used than later ones,
    so that an evicted block never leaves successors behind.
    """

    def __init__(self, *, num_blocks: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._free = list(range(num_blocks))[::-1]
        self._blocks: OrderedDict[Key, int] = OrderedDict()
        """Key → block number, least recently used first."""

    def clear(self) -> None:
        """Drop all prefixes."""
        self._free.extend(self._blocks.values())
        self._blocks.clear()

    def match(self, ids: Sequence[int]) -> list[int]:
        """Return the blocks of the longest known prefix of `ids`; the last has fewer ids only if `ids` end with it."""
        return self._walk(ids)[0]

    def key_after(self, ids: Sequence[int], blocks: Sequence[int]) -> Key | None:
        """Return the key of the block of `ids` after its matched `blocks`; None if all ids were matched."""
        start = len(blocks) * self.block_tokens
        block_ids = tuple(ids[start : start + self.block_tokens])
        return (blocks[-1] if blocks else ROOT, block_ids) if block_ids else None

    def insert(self, ids: Sequence[int]) -> tuple[int, list[int]]:
        """Make room for all `ids`; return how many blocks were known, and the new blocks to be filled.

        There are fewer new blocks if the chain alone would exceed the store.
        """
        blocks, keys = self._walk(ids)
        known = len(blocks)
        size = self.block_tokens
        path = set(keys)
        for start in range(known * size, len(ids), size):
            block = self._take(path)
            if block is None:
                break
            key = (blocks[-1] if blocks else ROOT, tuple(ids[start : start + size]))
            self._blocks[key] = block
            blocks.append(block)
            keys.append(key)
            path.add(key)
        self._touch(keys)
        return known, blocks[known:]

    def _walk(self, ids: Sequence[int]) -> tuple[list[int], list[Key]]:
        size, known = self.block_tokens, self._blocks
        blocks: list[int] = []
        keys: list[Key] = []
        last = ROOT
        for start in range(0, len(ids), size):
            key = (last, tuple(ids[start : start + size]))
            found = known.get(key)
            if found is None:
                break
            last = found
            blocks.append(found)
            keys.append(key)
        self._touch(keys)
        return blocks, keys

    def _touch(self, keys: list[Key]) -> None:
        """Mark a chain as used, its first block last, so that it counts as the most recent."""
        for key in reversed(keys):
            self._blocks.move_to_end(key)

    def _take(self, path: set[Key]) -> int | None:
        """Return a free block, evicting the least recently used one if necessary; None if that one is on `path`."""
        if self._free:
            return self._free.pop()
        oldest = next(iter(self._blocks), None)
        if oldest is None or oldest in path:
            return None
        return self._blocks.pop(oldest)
