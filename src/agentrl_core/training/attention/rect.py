"""Attention over a token trie on CPU: a causal flash-attention call per node, exact, memory linear in the tokens.

A node's own tokens see its keys causally, and all tokens below it see all of them: the causal rectangle of queries
[start, stop) and keys [start, end). Small nodes side by side, such as short replies to one prompt, share a call whose
mask separates them. A token's results from the nodes on its path are merged by their log-sum-exps, as
flash attention merges blocks (arXiv 2205.14135, section 3.1). In the backward pass each rectangle's gradient comes from
the stock kernel, called with the merged output and log-sum-exp, as in ring attention (arXiv 2310.01889).
Hq query heads, Hk key heads, T tokens, D head width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from agentrl_core.training.private_names import cpu_flash_attention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from agentrl_core.batching.trie import TrieNode
    from agentrl_core.training.attention.tree import Kernel


_SMALL = 64
"""Most tokens of nodes that share a call: with many short replies, attention then takes 0.4x of the time."""


@attrs.frozen(kw_only=True, eq=False)
class _Rectangle:
    """One call: queries [start, stop) and keys [start, end)."""

    start: int
    end: int
    stop: int
    mask: Tensor | None = None
    """Mask to add to the scores [1, 1, stop - start, end - start]; None: causal."""


def rect(nodes: Sequence[TrieNode]) -> Kernel:
    """Return the attention along every token's path. query [1, Hq, T, D], key and value [1, Hk, T, D] -> like query."""
    planned: dict[torch.dtype, list[_Rectangle]] = {}

    def attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        if query.dtype not in planned:  # the first layer of a model
            planned[query.dtype] = _rectangles(nodes, query)
        output: Tensor = _Rectangles.apply(  # type: ignore[no-untyped-call]  # autograd's own signature
            query, key, value, planned[query.dtype], scale
        )
        return output

    return attend


def _rectangles(nodes: Sequence[TrieNode], like: Tensor) -> list[_Rectangle]:
    """Return the calls that cover every pair of a token and one that it sees, once; masks are as `like`."""
    found = []
    index = root_stop = 0
    while index < len(nodes):
        start, end, stop = nodes[index]
        # As many nodes as fit, each with all that is below it: their keys are seen by no query outside. Below a root,
        # the next root does not fit: its tokens have no results yet that those of this call could be merged with.
        limit = start + _SMALL if start >= root_stop else min(start + _SMALL, root_stop)
        root_stop = max(root_stop, stop)
        after, last = index, start
        while after < len(nodes) and nodes[after].stop <= limit:
            last = max(last, nodes[after].stop)
            after += 1
        if after - index > 1:
            mask = _mask(nodes[index:after]).to(like)
            found.append(_Rectangle(start=start, end=last, stop=last, mask=mask))
            index, root_stop = after, max(root_stop, last)
        else:
            found.append(_Rectangle(start=start, end=end, stop=stop))
            index += 1
    return found


def _mask(nodes: Sequence[TrieNode]) -> Tensor:
    """Return the mask of adjoining nodes: 0 where a token sees another, -inf elsewhere. [1, 1, tokens, tokens]."""
    first = nodes[0].start
    seen_until = torch.cat([torch.full((end - start,), stop - first) for start, end, stop in nodes])
    place = torch.arange(len(seen_until))
    sees = (place <= place[:, None]) & (place[:, None] < seen_until)
    return torch.zeros(sees.shape).masked_fill_(~sees, -torch.inf)[None, None]


class _Rectangles(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, calls: Sequence[_Rectangle], scale: float
    ) -> Tensor:
        # Models pass views in which the heads of a token lie side by side. On contiguous heads the kernel is up to
        # 1.5 times as fast.
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        output: Tensor
        if len(calls) == 1:
            attend, _ = cpu_flash_attention()
            mask = calls[0].mask
            output, weight = attend(query, key, value, 0.0, mask is None, attn_mask=mask, scale=scale)
        else:
            output, weight = _merged(query, key, value, calls, scale)
        ctx.save_for_backward(query, key, value, output, weight)
        ctx.calls, ctx.scale = calls, scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        to_query, to_key, to_value = _side_by_side(query), _side_by_side(key), _side_by_side(value)
        _, go_back = cpu_flash_attention()
        covered = 0
        for call in ctx.calls:
            start, end, stop = call.start, call.end, call.stop
            below, own = (..., slice(start, stop), slice(None)), (..., slice(start, end), slice(None))
            part, to_key[own], to_value[own] = go_back(
                gradient[below],
                query[below],
                key[own],
                value[own],
                output[below],
                weight[..., start:stop].contiguous(),
                0.0,
                call.mask is None,
                attn_mask=call.mask,
                scale=ctx.scale,
            )
            # `to_query` is uninitialised. Roots come first and cover all tokens below them, so a root writes and the
            # others add.
            if start >= covered:
                to_query[below] = part
                covered = stop
            else:
                to_query[below] += part
        return to_query, to_key, to_value, None, None


def _side_by_side(heads: Tensor) -> Tensor:
    """Allocate gradients in the model's own memory layout. [1, H, T, D], a view of [1, T, H, D]; not initialised."""
    return torch.empty_like(heads.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)


def _merged(
    query: Tensor, key: Tensor, value: Tensor, calls: Sequence[_Rectangle], scale: float
) -> tuple[Tensor, Tensor]:
    """Return the output [1, Hq, T, D] and the log-sum-exp of every token's scores [1, Hq, T].

    Both are accumulated in fp32, or fp64 for fp64 input.
    """
    attend, _ = cpu_flash_attention()
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    output = torch.empty_like(query, dtype=wide)
    weight = query.new_empty(query.shape[:-1], dtype=wide)
    covered = 0
    for call in calls:
        start, stop = call.start, call.stop
        own = (..., slice(start, call.end), slice(None))
        part, part_weight = attend(
            query[..., start:stop, :],
            key[own],
            value[own],
            0.0,
            call.mask is None,
            attn_mask=call.mask,
            scale=scale,
        )
        so_far, so_far_weight = output[..., start:stop, :], weight[..., start:stop]
        if start >= covered:
            so_far.copy_(part)
            so_far_weight.copy_(part_weight)
            covered = stop
            continue
        # The softmax weights of two parts sum to exp(log-sum-exp) each; the new part's share of both is the sigmoid of
        # the difference of the log-sum-exps.
        share = torch.sigmoid(part_weight - so_far_weight)[..., None]
        so_far.lerp_(part.to(wide), share)
        so_far_weight.copy_(torch.logaddexp(so_far_weight, part_weight))
    return output.to(query.dtype), weight
