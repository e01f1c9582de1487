"""Attention over a token trie in one FlexAttention kernel, for CUDA: a key knows how far it is seen, no mask is built.

A query at place q sees the key at place k where k <= q < `stop` of k's node. Which blocks of 128 x 128 that makes
empty, whole or mixed follows from the least and the largest `stop` of each block of keys, so the block mask of T
tokens costs (T / 128)^2, once for a micro-batch and not for each layer. FlexAttention has no backward on a CPU: there
the forward alone can be had, to be tested.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from agentrl_core.batching.trie import Node

BLOCK = 128
_SIZES = 8
"""Lengths between a power of two and the next, so that few kernels are compiled and at most a ninth is padding."""
_MOST_SIZES = 128
"""Lengths that kernels are compiled for, up to 16 million tokens; a limit of torch's that must not be met."""


def padded(tokens: int) -> int:
    """Tokens after padding: whole blocks, in few different lengths."""
    blocks = -(-tokens // BLOCK)
    step = 1 << max(0, (blocks - 1).bit_length() - _SIZES.bit_length())
    return -(-blocks // step) * step * BLOCK


def flex(nodes: Sequence[Node], device: torch.device) -> Callable[..., Tensor]:
    """Make the kernel of a micro-batch: query [1, Hq, T, D], key and value [1, Hk, T, D], scale -> [1, Hq, T, D].

    T is `padded`; the tokens that are too many see but themselves.
    """
    return partial(_attend, block_mask(nodes, device))


def block_mask(nodes: Sequence[Node], device: torch.device) -> BlockMask:
    """Which blocks of queries see which blocks of keys, and the predicate for where they see part of them."""
    total = nodes[-1].end
    stop = torch.arange(1, padded(total) + 1, device=device)
    lengths = torch.tensor([node.end - node.start for node in nodes], device=device)
    stop[:total] = torch.tensor([node.stop for node in nodes], device=device).repeat_interleave(lengths)
    blocks = stop.view(-1, BLOCK)
    start = torch.arange(0, len(stop), BLOCK, device=device)[:, None]
    before = start > start.T
    whole = before & (blocks.amin(1) >= start + BLOCK)
    mixed = (before & (blocks.amax(1) > start) & ~whole) | (start == start.T)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        del batch, head
        return (key <= query) & (query < stop[key])

    return BlockMask.from_kv_blocks(*_listed(mixed), *_listed(whole), BLOCK_SIZE=BLOCK, mask_mod=sees)


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of keys each block of queries has, and which, before all others. [1, 1, B], [1, 1, B, B]."""
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
