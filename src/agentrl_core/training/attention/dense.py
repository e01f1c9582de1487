"""Attention over a token trie with a dense T x T mask: the reference for tests, too large for real batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from agentrl_core.batching.trie import TrieNode


def dense(query: Tensor, key: Tensor, value: Tensor, nodes: Sequence[TrieNode], scale: float) -> Tensor:
    """Compute attention along every token's path. query [1, Hq, T, D], key and value [1, Hk, T, D] -> [1, Hq, T, D]."""
    return scaled_dot_product_attention(
        query, key, value, attn_mask=visible(nodes, query.device), scale=scale, enable_gqa=True
    )


def visible(nodes: Sequence[TrieNode], device: torch.device) -> Tensor:
    """Return the mask: True where the query of a row sees the key of a column. Bool. [T, T]."""
    total = nodes[-1].end
    mask = torch.zeros(total, total, dtype=torch.bool, device=device)
    for start, end, stop in nodes:
        mask[start:stop, start:end] = True
    return mask.tril_()
