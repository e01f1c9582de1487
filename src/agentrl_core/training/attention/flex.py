"""Attention over a token trie with one FlexAttention kernel, for CUDA; no T x T mask is built.

A query at place q sees the key at place k where k <= q < `stop` of k's node. The smallest and largest `stop` of each
block of keys tell which 128 x 128 blocks are empty, full or partial. So the block mask of T tokens costs (T / 128)^2,
once per micro-batch instead of once per layer. FlexAttention has no backward on CPU; there only the forward runs, for
tests.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from agentrl_core.batching.trie import TrieNode

BLOCK = 128
_SIZES = 8
"""Number of padded lengths between a power of two and the next: few kernels are compiled, and at most a ninth of a
length is padding."""
_MOST_SIZES = 128
"""Recompile limit passed to torch. It covers every padded length up to 16 million tokens; it must not be reached."""


def padded(tokens: int) -> int:
    """Return the padded length in tokens: whole blocks, rounded up to one of few lengths."""
    blocks = -(-tokens // BLOCK)
    step = 1 << max(0, (blocks - 1).bit_length() - _SIZES.bit_length())
    return -(-blocks // step) * step * BLOCK


def flex(nodes: Sequence[TrieNode], device: torch.device) -> Callable[..., Tensor]:
    """Return the kernel of a micro-batch: query [1, Hq, T, D], key and value [1, Hk, T, D], scale -> [1, Hq, T, D].

    T is the length after `padded`. A padding token sees only itself.
    """
    return partial(_attend, block_mask(nodes, device))


def block_mask(nodes: Sequence[TrieNode], device: torch.device) -> BlockMask:
    """Return the block mask: full and partial blocks, and the predicate that FlexAttention applies in partial ones."""
    total = nodes[-1].end
    # A padding token is its own node: `stop` is its place + 1.
    stop = torch.arange(1, padded(total) + 1, device=device)
    lengths = torch.tensor([node.end - node.start for node in nodes], device=device)
    stop[:total] = torch.tensor([node.stop for node in nodes], device=device).repeat_interleave(lengths)
    blocks = stop.view(-1, BLOCK)
    start = torch.arange(0, len(stop), BLOCK, device=device)[:, None]
    before = start > start.T
    # Rows are blocks of queries, columns blocks of keys. A block is full if even its key with the smallest `stop` is
    # seen by the last query. Diagonal blocks are partial: they are causal inside.
    whole = before & (blocks.amin(1) >= start + BLOCK)
    mixed = (before & (blocks.amax(1) > start) & ~whole) | (start == start.T)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        del batch, head
        return (key <= query) & (query < stop[key])

    return BlockMask.from_kv_blocks(*_listed(mixed), *_listed(whole), BLOCK_SIZE=BLOCK, mask_mod=sees)


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return counts [1, 1, B] and indices [1, 1, B, B] of the chosen key blocks of each query block.

    FlexAttention's format: the chosen blocks come first in each row, in rising order.
    """
    order = chosen.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    return chosen.sum(1, dtype=torch.int32)[None, None], order.to(torch.int32)[None, None]


def _attend(mask: BlockMask, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    attend: Any = _compiled() if query.is_cuda else flex_attention
    output: Tensor = attend(query, key, value, block_mask=mask, scale=scale, enable_gqa=True)
    return output


@cache
def _compiled() -> Callable[..., Tensor]:
    compiled: Callable[..., Tensor] = torch.compile(  # type: ignore[call-overload]  # its stubs lack the limit
        flex_attention, dynamic=False, recompile_limit=_MOST_SIZES
    )
    return compiled
