"""Attention over a token trie on CPU: one causal flash-attention call per node, exact, memory linear in the tokens.

A node's own tokens see its keys causally, and all tokens below it see all of them: the causal rectangle of queries
[start, stop) and keys [start, end). A token's results from the nodes on its path are merged by their log-sum-exps, as
flash attention merges blocks (arXiv 2205.14135, section 3.1). In the backward pass each rectangle's gradient comes from
the stock kernel, called with the merged output and log-sum-exp, as in ring attention (arXiv 2310.01889).
Hq query heads, Hk key heads, T tokens, D head width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from agentrl_core.training.private_names import cpu_flash_attention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from agentrl_core.batching.trie import TrieNode


def rectangles(query: Tensor, key: Tensor, value: Tensor, nodes: Sequence[TrieNode], scale: float) -> Tensor:
    """Compute attention along every token's path. query [1, Hq, T, D], key and value [1, Hk, T, D] -> [1, Hq, T, D]."""
    output: Tensor = _Rectangles.apply(  # type: ignore[no-untyped-call]  # autograd's own signature
        query, key, value, nodes, scale
    )
    return output


class _Rectangles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, nodes: Sequence[TrieNode], scale: float) -> Tensor:
        # Models pass views in which the heads of a token lie side by side. On contiguous heads the kernel is up to
        # 1.5 times as fast.
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        output: Tensor
        if len(nodes) == 1:
            attend, _ = cpu_flash_attention()
            output, weight = attend(query, key, value, 0.0, True, scale=scale)
        else:
            output, weight = _merged(query, key, value, nodes, scale)
        ctx.save_for_backward(query, key, value, output, weight)
        ctx.nodes, ctx.scale = nodes, scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        to_query, to_key, to_value = _side_by_side(query), _side_by_side(key), _side_by_side(value)
        _, go_back = cpu_flash_attention()
        covered = 0
        for start, end, stop in ctx.nodes:
            below, own = (..., slice(start, stop), slice(None)), (..., slice(start, end), slice(None))
            part, to_key[own], to_value[own] = go_back(
                gradient[below],
                query[below],
                key[own],
                value[own],
                output[below],
                weight[..., start:stop].contiguous(),
                0.0,
                True,
                scale=ctx.scale,
            )
            # `to_query` is uninitialised. Roots come first and cover all tokens below them, so a root writes and the
            # other nodes add.
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
    query: Tensor, key: Tensor, value: Tensor, nodes: Sequence[TrieNode], scale: float
) -> tuple[Tensor, Tensor]:
    """Return the output [1, Hq, T, D] and the log-sum-exp of every token's scores [1, Hq, T].

    Both are accumulated in fp32, or fp64 for fp64 input.
    """
    attend, _ = cpu_flash_attention()
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    output = torch.empty_like(query, dtype=wide)
    weight = query.new_empty(query.shape[:-1], dtype=wide)
    covered = 0
    for start, end, stop in nodes:
        own = (..., slice(start, end), slice(None))
        part, part_weight = attend(query[..., start:stop, :], key[own], value[own], 0.0, True, scale=scale)
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
