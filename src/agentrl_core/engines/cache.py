"""Tensors that hold keys and values: one row per running job, and the store of shared prefixes.

Both are allocated larger than needed at first, without being written to. The operating system assigns memory pages only
on the first write, so real memory follows use. Shapes: see `agentrl_core.engines.decoder`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

FIRST_ROWS, FIRST_TOKENS = 8, 256
"""Initial size of `rows`."""


class KeyValueCache:
    """`rows` [L, R, 2K, T, E], which doubles in size up to its limits, and `store` [L, 2K, P, E]."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        max_rows: int,
        max_tokens: int,
        store_tokens: int,
    ) -> None:
        self._max_rows = max_rows
        self._max_tokens = max_tokens
        self._shape = (num_layers, 2 * num_kv_heads, head_dim)
        self.rows = self._allocate(min(FIRST_ROWS, max_rows), min(FIRST_TOKENS, max_tokens))
        self.store = torch.empty(num_layers, 2 * num_kv_heads, store_tokens, head_dim)

    def reserve(self, num_rows: int, num_tokens: int) -> None:
        """Make room for `num_rows` rows of `num_tokens` tokens; existing content is kept."""
        old = self.rows
        rows, tokens = old.shape[1], old.shape[3]
        if num_rows > rows or num_tokens > tokens:
            self.rows = self._allocate(
                _grown(rows, num_rows, self._max_rows), _grown(tokens, num_tokens, self._max_tokens)
            )
            self.rows[:, :rows, :, :tokens] = old

    def _allocate(self, rows: int, tokens: int) -> Tensor:
        layers, heads, size = self._shape
        # Zeros, because cells after a row's end take part in the arithmetic before they are masked, and must be finite.
        # From numpy, because it leaves the zeroing to the operating system; torch.zeros would write to every page.
        return torch.from_numpy(np.zeros((layers, rows, heads, tokens, size), dtype=np.float32))


def _grown(size: int, needed: int, limit: int) -> int:
    while size < needed:
        size *= 2
    return min(size, limit)
