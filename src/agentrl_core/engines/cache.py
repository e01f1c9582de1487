"""Tensors that hold keys and values: one row per running job, and the store of shared prefixes.

Both are allocated larger than needed at first, without being written to. The operating system assigns memory pages only
on the first write, so real memory follows use. A GPU has no such pages: there both take their size at once. Shapes: see
`agentrl_core.engines.decoder`.
"""

from __future__ import annotations

import math
import mmap
from typing import Any

import torch
from torch import Tensor

FIRST_ROWS, FIRST_TOKENS = 8, 256
"""Initial size of `rows`."""


class KeyValueCache:
    """`rows` [L, 2, R, K, T, E], which doubles in size up to its limits, and `store` [L, 2, K, P, E]."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        max_rows: int,
        max_tokens: int,
        store_tokens: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._max_rows = max_rows
        self._max_tokens = max_tokens
        self._shape = (num_layers, num_kv_heads, head_dim)
        self._store_tokens = store_tokens
        self._placed: Any = {"device": device, "dtype": dtype}
        self.allocate()

    def allocate(self) -> None:
        """Allocate both tensors in their initial sizes; what they held is lost."""
        layers, heads, size = self._shape
        self.rows = self._rows(min(FIRST_ROWS, self._max_rows), min(FIRST_TOKENS, self._max_tokens))
        self._used = 0
        self.store = torch.empty(layers, 2, heads, self._store_tokens, size, **self._placed)

    def release(self) -> None:
        """Free the memory of both tensors; `allocate` makes them again."""
        self.rows = self.store = torch.empty(0, **self._placed)

    def reserve(self, num_rows: int, num_tokens: int) -> None:
        """Make room for `num_rows` rows of `num_tokens` tokens; existing content is kept.

        No other cells are written to before the next call.
        """
        old = self.rows
        rows, tokens = old.shape[2], old.shape[4]
        if num_rows > rows or num_tokens > tokens:
            self.rows = self._rows(_grown(rows, num_rows, self._max_rows), _grown(tokens, num_tokens, self._max_tokens))
            # Not the cells that were never used: a copy would give them memory.
            self.rows[:, :, :rows, :, : self._used] = old[..., : self._used, :]
        self._used = max(self._used, num_tokens)

    def _rows(self, rows: int, tokens: int) -> Tensor:
        layers, heads, size = self._shape
        shape = (layers, 2, rows, heads, tokens, size)
        # Zeros, because cells after a row's end take part in the arithmetic before they are masked, and must be finite.
        if self._placed["device"].type != "cpu":
            return torch.zeros(shape, **self._placed)
        # A mapping of our own, which the operating system zeroes page by page. torch.zeros would write to all of it.
        # numpy.zeros asks for huge pages: a row's first tokens would take 2 MB per layer and head.
        size_bytes = math.prod(shape) * self._placed["dtype"].itemsize
        memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return torch.frombuffer(memory, dtype=self._placed["dtype"]).view(shape)


def _grown(size: int, needed: int, limit: int) -> int:
    while size < needed:
        size *= 2
    return min(size, limit)
